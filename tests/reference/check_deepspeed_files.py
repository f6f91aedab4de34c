#!/usr/bin/env python3
"""Compares what Sluice and DeepSpeed say of DeepSpeed's configuration files.

    check_deepspeed_files.py SLUICE FOLDER [--train]

FOLDER holds files of the caller's choice, *.json. Each is read by DeepSpeed's own DeepSpeedConfig, with
the defaults of Hugging Face's Trainer in place of "auto", and by `sluice plan FILE --auto hf` with a tiny
model, a run directory and, where the file names a drive, a directory that exists. Both are told the number
of ranks that the file's three batch sizes mean. With --train the files for one rank are trained for a step.

A file that DeepSpeed accepts must be planned, or refused by a sentence about something that Sluice does not
have (REASONS). Every other refusal is listed as wrong. Ends with 1 if there is one, with 77 without the
packages. Needs deepspeed and torch (on the CPU).
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")
try:
    import hjson
    from deepspeed.runtime import config as deepspeed
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

MODEL = {"family": "gpt2", "num_layers": 2, "hidden_size": 64, "num_heads": 4, "seq_length": 32}
TEXT = "The quick brown fox jumps over the lazy dog.\n" * 4000

# What HfTrainerDeepSpeedConfig of transformers puts for "auto", by default and for MODEL.
AUTO = {
    "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
    "optimizer.params.lr": 5e-5, "optimizer.params.betas": [0.9, 0.999], "optimizer.params.eps": 1e-8,
    "optimizer.params.weight_decay": 0.0, "scheduler.params.warmup_min_lr": 0,
    "scheduler.params.warmup_max_lr": 5e-5, "scheduler.params.warmup_num_steps": 0,
    "scheduler.params.total_num_steps": 2, "fp16.enabled": False, "bf16.enabled": False,
    "bfloat16.enabled": False, "zero_optimization.reduce_bucket_size": 4096,
    "zero_optimization.stage3_prefetch_bucket_size": 3686,
    "zero_optimization.stage3_param_persistence_threshold": 640,
}

# Why Sluice may refuse what DeepSpeed's configuration class accepts.
REASONS = [
    ("not built", r"not built|changes? the arithmetic|changes what is trained|not trained here"),
    ("fails when DeepSpeed starts", r"needs it$|no parameter of|is none of WarmupLR|is none of Adam|max_grad_norm|r.params.\w+: unknown"),
    ("says two things", r"disagrees|given beside|enable one of them|which is the same"),
    ("not JSON", r"\.json:\d+:\d+: "),
]


def fill_auto(block, path=""):
    """Replaces "auto" by the trainer's value, and removes it where the trainer has none."""
    for key, value in list(block.items()):
        here = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            fill_auto(value, here)
        elif value == "auto" and here in AUTO:
            block[key] = AUTO[here]
        elif value == "auto":
            del block[key]


def ranks_of(block):
    """The number of ranks that the batch sizes mean: 1 if they leave it open."""
    train, micro = block.get("train_batch_size"), block.get("train_micro_batch_size_per_gpu")
    times = block.get("gradient_accumulation_steps") or 1
    if not all(isinstance(count, int) for count in (train, micro, times)) or micro * times <= 0:
        return 1
    return max(1, train // (micro * times))


def judge(block, ranks):
    """None if DeepSpeed accepts the configuration, else what it says."""
    deepspeed.dist.get_rank = lambda *_: 0
    deepspeed.dist.get_world_size = lambda *_: ranks
    deepspeed.logger.disabled = True
    try:
        deepspeed.DeepSpeedConfig(block)
        return None
    except Exception as error:  # whatever it raises is its refusal
        return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def offers_drive(text):
    """--set arguments that put the drives of the file into the working directory."""
    found = []
    for block in ("offload_optimizer", "offload_param"):
        body = re.search(r'"%s"\s*:\s*{[^}]*}' % block, text)
        if body and '"nvme"' in body.group(0):
            found += ["--set", f"zero_optimization.{block}.nvme_path=drive"]
    return found


def run(sluice, verb, path, more, cwd):
    budgets = ["--set", "tiers.device.budget=8GiB", "--set", "tiers.host.budget=8GiB"]
    command = [sluice, verb, path, "--auto", "hf", "--set", f"model={json.dumps(MODEL)}",
               "--set", 'run={"dir": "run", "steps": 1}', "--set", "data.train=text.txt"]
    done = subprocess.run(command + budgets + more, cwd=cwd, capture_output=True, text=True, timeout=300)
    sentence = next((line for line in done.stderr.splitlines() if "error:" in line), done.stderr[-200:])
    return done.returncode, sentence.removeprefix("sluice: error: ")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sluice", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--train", action="store_true")
    asked = parser.parse_args()
    sluice, counts, wrong, trained = str(asked.sluice.resolve()), {}, [], 0
    for path in sorted(asked.folder.resolve().glob("*.json")):
        text = path.read_text(encoding="utf-8")
        try:
            block = json.loads(json.dumps(hjson.loads(text)))
            fill_auto(block)
            ranks = ranks_of(block)
            if "train_batch_size" in block and isinstance(block["train_batch_size"], str):
                del block["train_batch_size"]
            refusal = judge(block, ranks)
        except (hjson.HjsonDecodeError, AttributeError) as error:
            refusal, ranks = f"{type(error).__name__}: {error}", 1
        with tempfile.TemporaryDirectory() as cwd:
            pathlib.Path(cwd, "text.txt").write_text(TEXT, encoding="ascii")
            more = offers_drive(text)
            code, sentence = run(sluice, "plan", str(path), more + ["--ranks", str(ranks)], cwd)
            if code == 0 and asked.train and ranks == 1:
                code, sentence = run(sluice, "train", str(path), more, cwd)
                trained += code == 0
        reason = next((name for name, pattern in REASONS if re.search(pattern, sentence)), None)
        if code == 0:
            kind = "planned" if refusal is None else "planned, though DeepSpeed refuses it"
        elif refusal is not None:
            kind = "refused by both"
        elif code in (2, 3) and reason:
            kind = f"refused with a reason: {reason}"
        else:
            kind = "REFUSED WRONGLY"
            wrong.append(path.name)
        counts[kind] = counts.get(kind, 0) + 1
        if kind != "planned":
            print(f"{path.name}: {kind}")
            print(f"    sluice: {code}: {sentence if code else '-'}")
            print(f"    deepspeed: {refusal or 'accepts it'}")
    for kind, count in sorted(counts.items()):
        print(f"{count:5} {kind}")
    if asked.train:
        print(f"{trained:5} trained for a step")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
