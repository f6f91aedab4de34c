#!/usr/bin/env python3
"""Makes the fp16 curves of curves.json: tiny models trained by PyTorch in fp16 with a dynamic loss scale.

Needs numpy and torch (CPU). Usage: python3 make_fp16.py [TARGET_DIR]
README.md describes them. Weights and activations are fp16, master weights fp32; gradients are
summed in fp32 over the micro-batches and rounded to fp16 once; torch.amp.GradScaler finds overflows,
divides by the scale and moves it. Text, weights and windows are those of make_fixtures.py, but some
steps get windows of one byte alone, whose gradients are far larger than all others: they overflow
whenever the scale is not very small, so no decision is close. A run in which one is close is refused.
"""

import math
import pathlib
import sys

import torch
from torch.nn import functional

import make_fixtures
from make_fixtures import ACCUMULATION, COMMON, CORPUS_ALPHABET, FAMILIES, MICRO_BATCH, SEED, TRAINING

STEPS = 60
CORPUS_TOKENS = STEPS * ACCUMULATION * MICRO_BATCH * COMMON["seq_length"] + 19  # one epoch
SPIKE_BYTE = 200  # not in the alphabet of the text
SPIKE_STEPS = [2, 3, 4, 5, 8, 19, 28, 45, 46]  # from 0
SCALER = {"initial_scale_power": 22, "loss_scale_window": 8}
FP16_MAX = 65504.0
MARGIN_MIN = 1.5


# ---- the modules of make_fixtures.py, at home in fp16 --------------------------------------------


def attention(q, k, v):
    """As there, with the softmax in fp32."""
    length = q.shape[-2]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    hidden = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
    weights = torch.softmax(scores.masked_fill(hidden, -math.inf).float(), -1)
    return weights.to(v.dtype) @ v


def rms_norm(self, x):
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
    return y.to(x.dtype) * self.weight


def adapt():
    rotate = make_fixtures.rotate
    make_fixtures.attention = attention
    make_fixtures.RmsNorm.forward = rms_norm
    make_fixtures.rotate = lambda x, theta: rotate(x, theta).to(x.dtype)
    make_fixtures.CORPUS_TOKENS = CORPUS_TOKENS
    make_fixtures.STEPS = STEPS


# ---- how close a decision is ---------------------------------------------------------------------


class Watch:
    """The largest gradient of anything stored in fp16, of activations and parameters, unscaled."""

    def __init__(self, model):
        self.largest = 0.0
        for module in model.modules():
            if module is not model:
                module.register_full_backward_hook(self.see)

    def see(self, module, grad_inputs, grad_outputs):
        for grad in (*grad_inputs, *grad_outputs):
            if grad is not None:
                self.see_one(grad)

    def see_one(self, grad):
        self.largest = max(self.largest, grad.abs().max().item())


def backward(model, batches, scale, watch=None):
    """Sums gradients of the scaled loss into the fp32 parameters, rounds them to fp16; the loss."""
    total = 0.0
    for batch in batches:
        working = {name: parameter.half() for name, parameter in model.named_parameters()}
        logits = torch.func.functional_call(model, working, (batch[:, :-1],))
        if watch:
            logits.register_hook(watch.see_one)
        loss = functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        (loss / ACCUMULATION * scale).backward()
        total += loss.item() / ACCUMULATION
    for parameter in model.parameters():
        parameter.grad = parameter.grad.half().float()
        if watch:
            watch.see_one(parameter.grad)
    return total


def largest_gradient(model, watch, batches):
    """Unscaled, taken at a scale at which nothing overflows."""
    probe_scale = 256.0
    watch.largest = 0.0
    backward(model, batches, probe_scale, watch)
    for parameter in model.parameters():
        parameter.grad = None
    return watch.largest / probe_scale


# ---- training ------------------------------------------------------------------------------------


def make_corpus(begins, length):
    corpus = make_fixtures.make_corpus()
    rows = ACCUMULATION * MICRO_BATCH
    spikes = [begin for step in SPIKE_STEPS for begin in begins[step * rows : (step + 1) * rows]]
    for begin in spikes:
        corpus[begin : begin + length + 1] = [SPIKE_BYTE] * (length + 1)
    return torch.tensor(corpus), spikes


def train(spec):
    length, rows = spec["seq_length"], ACCUMULATION * MICRO_BATCH
    begins = [make_fixtures.window_begin(i, length) for i in range(STEPS * rows)]
    corpus, spikes = make_corpus(begins, length)
    model = make_fixtures.Model(spec)
    model.init()
    watch = Watch(model)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=0.0, betas=TRAINING["betas"],
                                  eps=TRAINING["epsilon"], weight_decay=TRAINING["weight_decay"],
                                  foreach=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** SCALER["initial_scale_power"],
                                  growth_factor=2.0, backoff_factor=0.5,
                                  growth_interval=SCALER["loss_scale_window"])
    scaler.scale(torch.zeros(1))  # makes its tensors
    out = {"window_begins": begins, "spikes": spikes, "losses": [], "loss_scales": [], "skipped": [],
           "grad_norms": [], "learning_rates": []}
    applied, worst = 0, math.inf  # the schedule counts applied steps alone, as DeepSpeed's
    for step in range(STEPS):
        windows = begins[step * rows : (step + 1) * rows]
        batches = torch.stack([corpus[b : b + length + 1] for b in windows]).split(MICRO_BATCH)
        scale = scaler.get_scale()
        ratio = largest_gradient(model, watch, batches) * scale / FP16_MAX
        loss = backward(model, batches, scale)
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(parameters, TRAINING["gradient_clipping"]).item()
        skipped = not math.isfinite(norm)
        margin = ratio if skipped else 1 / ratio
        worst = min(worst, margin)
        for group in optimizer.param_groups:
            group["lr"] = make_fixtures.learning_rate(applied + 1)
        scaler.step(optimizer)
        scaler.update()
        assert skipped == (scaler.get_scale() < scale), "the scaler saw another overflow"
        applied += not skipped
        optimizer.zero_grad()
        out["losses"].append(loss)
        out["loss_scales"].append(scale)
        out["skipped"].append(skipped)
        out["grad_norms"].append(None if skipped else norm)
        out["learning_rates"].append(None if skipped else make_fixtures.learning_rate(applied))
        print(f"  step {step + 1}: loss {loss:.5f}, scale 2^{math.log2(scale):g}, largest gradient "
              f"{ratio:.3g} of the largest fp16{', skipped' if skipped else ''}, margin {margin:.2f}")
    assert worst >= MARGIN_MIN, f"a decision is close: {worst:.3g}"
    out["margin"] = worst
    return out


def main():
    target = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    adapt()
    for family, tied in (("gpt2", True), ("llama", False)):
        spec = {**FAMILIES[family], **COMMON, "tie_embeddings": tied}
        print(family)
        fixture = {
            "format": 1, "made_by": f"torch {torch.__version__}", "seed": SEED, "model": spec,
            "corpus": {"tokens": CORPUS_TOKENS, "alphabet": CORPUS_ALPHABET,
                       "spike_byte": SPIKE_BYTE, "spike_bytes": spec["seq_length"] + 1},
            "steps": STEPS, "micro_batch": MICRO_BATCH, "accumulation": ACCUMULATION,
            "training": TRAINING, "fp16": SCALER, **train(spec),
        }
        name = f"fp16-{family}-{'tied' if tied else 'untied'}"
        make_fixtures.put_curve(target, name, fixture)
        print(f"{name}: loss {fixture['losses'][0]:.5f} -> {fixture['losses'][-1]:.5f}, "
              f"{sum(fixture['skipped'])} skipped, margin {fixture['margin']:.2f}")


if __name__ == "__main__":
    main()
