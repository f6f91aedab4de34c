"""The package as it is installed: import, the command, a run step by step."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import sluice


def tiny_job(directory, **more):
    """A job that trains a few thousand parameters on a text that it writes to the directory."""
    text = os.path.join(directory, "text.txt")
    with open(text, "w") as file:
        for line in range(400):
            file.write(f"line {line}: a quick brown fox jumps over {line * 7919 % 1000} lazy dogs\n")
    job = {
        "model": {
            "family": "llama", "num_layers": 2, "hidden_size": 32, "num_heads": 2, "num_kv_heads": 2,
            "ffn_size": 64, "vocab_size": 256, "seq_length": 32, "tie_embeddings": True,
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
        job[key] = {**job[key], **value} if isinstance(value, dict) else value
    return job


def write_job(directory, **more):
    path = os.path.join(directory, "job.json")
    with open(path, "w") as file:
        json.dump(tiny_job(directory, **more), file)
    return path


class Package(unittest.TestCase):
    def test_command(self):
        command = os.path.join(os.path.dirname(sys.executable), "sluice")
        text = subprocess.run([command, "--version"], check=True, capture_output=True, text=True)
        self.assertEqual(text.stdout, f"sluice {sluice.__version__}\n")
        wrong = subprocess.run([command, "nothing"], capture_output=True, text=True)
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("unknown command", wrong.stderr)

    def test_import_loads_no_torch(self):
        code = "import sluice, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_steps_of_an_open_run(self):
        with tempfile.TemporaryDirectory() as directory:
            job = write_job(directory)
            with sluice.open(job) as run:
                info = run.info()
                self.assertEqual((info.step, info.steps, info.world_size), (0, 4, 1))
                losses = [run.step().loss for _ in range(2)]
                self.assertGreater(run.evaluate(), 0)
                self.assertEqual(run.commit(), 2)
            self.assertLess(losses[1], losses[0])
            with sluice.open(job) as run:
                self.assertEqual(run.info().step, 2)
                self.assertEqual(run.step().step, 3)

    def test_wrong_job(self):
        with tempfile.TemporaryDirectory() as directory:
            job = write_job(directory, model={"num_layer": 3})
            with self.assertRaises(sluice.WrongJob) as caught:
                sluice.open(job)
            self.assertEqual(caught.exception.status, 2)
            self.assertIn("num_layers", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
