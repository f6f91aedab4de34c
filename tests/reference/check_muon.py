#!/usr/bin/env python3
"""Compares steps of Muon on tiny random checkpoints with torch.optim.Muon and torch.optim.AdamW.

Usage: python3 check_muon.py SLUICE [FAMILY ...]        SLUICE: the program, as built

PyTorch orthogonalizes in bf16. Here it does so in fp32, as Sluice does: the module's only use of torch.bfloat16 is
replaced. Everything else is torch's own. Losses and norms of the gradient of each step are compared, in fp32, for
the three forms of adjust_lr_fn, with and without nesterov. Needs torch and transformers; without them it exits
with 77. README.md has the results.
"""

import itertools
import json
import pathlib
import subprocess
import sys
import tempfile

import check_families as families
from check_families import LENGTH, SEQUENCES, TOKENS, VOCAB, hf, np, torch
from torch.optim import _muon

STEPS, MUON_RATE, ADAM_RATE, DECAY, EPSILON = 10, 2e-3, 1e-3, 0.1, 1e-4
LOSS, NORM = 1e-5, 1e-4


class Fp32Torch:
    """The module torch, in which bfloat16 is float32."""

    bfloat16 = torch.float32

    def __getattr__(self, name):
        return getattr(torch, name)


def split_parameters(model):
    """The matrices of the blocks, and all other tensors."""
    blocks = next(module for module in model.modules() if isinstance(module, torch.nn.ModuleList))
    matrices = [p for p in blocks.parameters() if p.dim() == 2]
    ids = {id(p) for p in matrices}
    return matrices, [p for p in model.parameters() if id(p) not in ids]


def torch_steps(where, rows_in, adjust, nesterov):
    model = hf.AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, attn_implementation="eager")
    model.train()  # there is no dropout
    matrices, others = split_parameters(model)
    optimizers = [
        torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=DECAY, nesterov=nesterov, adjust_lr_fn=adjust),
        torch.optim.AdamW(others, lr=ADAM_RATE, eps=EPSILON, weight_decay=DECAY, foreach=False)]
    counted, rows = sum(len(targets) for _, targets in rows_in), []
    for _ in range(STEPS):
        model.zero_grad()
        loss = sum(torch.nn.functional.cross_entropy(
            model(torch.tensor([inputs])).logits[0].float(), torch.tensor(targets), reduction="sum")
            for inputs, targets in rows_in) / counted
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        rows.append((loss.item(), norm.item()))
        for optimizer in optimizers:
            optimizer.step()
    return rows


def our_steps(sluice, where, scratch, adjust, nesterov):
    run = scratch / f"run-{adjust}-{nesterov}"
    job = {
        "model": {"hf": str(where), "seq_length": LENGTH},
        "data": {"train": [str(scratch / "tokens.npy")], "format": "npy", "shuffle": "none"},
        "run": {"dir": str(run), "steps": STEPS, "commit_every": 0},
        "device": {"backend": "cpu"},
        "train_micro_batch_size_per_gpu": SEQUENCES, "gradient_clipping": 0.0,
        "optimizer": {"type": "Muon", "params": {
            "muon_lr": MUON_RATE, "adam_lr": ADAM_RATE, "eps": EPSILON, "weight_decay": DECAY,
            "nesterov": nesterov, "adjust_lr_fn": adjust}},
    }
    path = scratch / "job.json"
    path.write_text(json.dumps(job))
    done = subprocess.run([sluice, "train", str(path), "--quiet"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"sluice train gave {done.returncode}: {done.stderr}")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(row["loss"], row["grad_norm"]) for row in rows if "loss" in row]


def check(sluice, name, scratch):
    where = scratch / "hf"
    families.make_checkpoint(families.FAMILIES[name], where)
    ids = np.random.default_rng(5).integers(0, VOCAB, TOKENS).astype("<u2")
    np.save(scratch / "tokens.npy", ids)
    rows = [(ids[at : at + LENGTH].tolist(), ids[at + 1 : at + LENGTH + 1].tolist())
            for at in range(0, SEQUENCES * LENGTH, LENGTH)]
    good = True
    for adjust, nesterov in itertools.product(("original", "match_rms_adamw", "spectral_unclamped"), (True, False)):
        theirs = torch_steps(where, rows, adjust, nesterov)
        ours = our_steps(sluice, where, scratch, adjust, nesterov)
        loss, norm = (families.worst(a, b) for a, b in zip(zip(*ours), zip(*theirs)))
        passed = loss < LOSS and norm < NORM
        print(f"{name:13} {adjust:18} {'nesterov' if nesterov else 'plain':8}: {theirs[0][0]:.5f} -> "
              f"{theirs[-1][0]:.5f}; loss {loss:.1e}, gradient {norm:.1e}{'' if passed else '   FAILED'}", flush=True)
        good = good and passed
    return good


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    _muon.torch = Fp32Torch()
    results = []
    for name in sys.argv[2:] or ("gpt2", "gpt2-untied", "llama2", "qwen2", "phi3", "gpt_neox", "opt"):
        with tempfile.TemporaryDirectory() as scratch:
            results.append(check(sys.argv[1], name, pathlib.Path(scratch)))
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
