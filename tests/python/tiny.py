"""Jobs that train in a second, for the tests of the package."""

import json
import os


def tiny_job(directory, **more):
    """A job of some 29 thousand parameters, on a text that it writes to the directory. A further
    argument replaces a block, or adds to one that is an object."""
    text = os.path.join(directory, "text.txt")
    with open(text, "w") as file:
        for line in range(400):
            file.write(f"line {line}: a quick fox jumps over {line * 7919 % 1000} lazy dogs\n")
    job = {
        "model": {
            "family": "llama", "num_layers": 2, "hidden_size": 32, "num_heads": 2,
            "num_kv_heads": 2, "ffn_size": 64, "vocab_size": 256, "seq_length": 32,
            "tie_embeddings": True,
        },
        "data": {"train": [text], "valid": [text], "tokenizer": "bytes", "seed": 1},
        "run": {"dir": os.path.join(directory, "run"), "steps": 4, "seed": 1, "eval_batches": 2},
        "device": {"backend": "cpu"},
        "tiers": {
            "device": {"budget": "16MiB"},
            "host": {"budget": "16MiB"},
            "nvme": [{"path": os.path.join(directory, "drive"), "budget": "64MiB"}],
            "place": {"optimizer": "nvme"},
        },
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": 3},
    }
    for key, value in more.items():
        job[key] = {**job.get(key, {}), **value} if isinstance(value, dict) else value
    return job


def write_job(directory, **more):
    """The same as a file. Returns its path."""
    path = os.path.join(directory, "job.json")
    with open(path, "w") as file:
        json.dump(tiny_job(directory, **more), file)
    return path
