#!/usr/bin/env python3
"""Compares training with dropout with that of transformers and PEFT: python3 check_dropout.py SLUICE [CASE...]

Needs torch (CPU), transformers, peft, numpy. For each case a tiny random checkpoint with dropout in its config.json is
made. Sluice trains it in fp32, all of it or adapters. transformers (with PEFT) does the same steps with its own modules,
except that torch.nn.functional.dropout draws Sluice's masks: kernels/dropout_mask.h, here written again in numpy. Losses
and gradient norms of each step must agree; without dropout they must not.

Prints the differences; exit status 1 if one is above its bound."""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers
from peft import PeftModel
from torch.nn import functional

from masked import mask_window

SEQ, MICRO_BATCH, ACCUMULATION, STEPS, LR, SEED = 31, 2, 2, 5, 2e-3, 11
BOUND = 1e-5
MASK = 255  # not in the text
failed = False

SIZES = dict(vocab_size=256, num_hidden_layers=3, hidden_size=64, num_attention_heads=4, max_position_embeddings=128,
             initializer_range=0.1)
LORA = {"rank": 6, "alpha": 15, "dropout": 0.1,
        "targets": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}


def block_sites(layer, order):
    return [64 * (layer + 1) + site for site in order]


# Each case: the configuration, the adapters, the sites in the order in which a forward comes to them.
ROWS, ADAPTERS = (0, 1, 2), (32, 33, 34, 0, 35, 36, 37, 38)
CASES = {
    "gpt2": (lambda: transformers.GPT2Config(
        vocab_size=256, n_embd=64, n_layer=3, n_head=4, n_positions=128, initializer_range=0.1, resid_pdrop=0.1,
        embd_pdrop=0.2, attn_pdrop=0.15), None, [0], ROWS),
    "starcoder2": (lambda: transformers.Starcoder2Config(
        **SIZES, intermediate_size=160, num_key_value_heads=2, residual_dropout=0.1, embedding_dropout=0.2,
        attention_dropout=0.15, sliding_window=None), None, [0], ROWS),
    "phi3": (lambda: transformers.Phi3Config(
        **SIZES, intermediate_size=112, num_key_value_heads=2, resid_pdrop=0.2, attention_dropout=0.1,
        pad_token_id=0), None, [], ROWS),
    "llama": (lambda: transformers.LlamaConfig(
        **SIZES, intermediate_size=112, num_key_value_heads=2, attention_dropout=0.25), None, [], (0,)),
    # The embedding's dropout is the first site of rows in block 0.
    "bert": (lambda: transformers.BertConfig(
        **SIZES, intermediate_size=112, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.15,
        pad_token_id=None), None, [65], (0, 2, 3)),
    "llama-lora": (lambda: transformers.LlamaConfig(
        **SIZES, intermediate_size=112, num_key_value_heads=2, attention_dropout=0.25), LORA, [], ADAPTERS),
}


# ---- Sluice's masks ----

def philox(counter, key):
    """Philox 4x32-10 (Salmon et al., 2011): four arrays of words from four arrays."""
    c = [numpy.asarray(word, dtype=numpy.uint64) for word in counter]
    low = numpy.uint64(0xFFFFFFFF)
    for turn in range(10):
        k0 = numpy.uint64((key + turn * 0x9E3779B9) & 0xFFFFFFFF)
        k1 = numpy.uint64(((key >> 32) + turn * 0xBB67AE85) & 0xFFFFFFFF)
        a, b = c[0] * numpy.uint64(0xD2511F53), c[2] * numpy.uint64(0xCD9E8D57)
        shift = numpy.uint64(32)
        c = [(b >> shift) ^ c[1] ^ k0, b & low, (a >> shift) ^ c[3] ^ k1, a & low]
    return c


def factors(shape, probability, step, sequence, site):
    """What the elements of one sequence are multiplied by. A row of attention's has whole quads."""
    columns = shape[-1] if len(shape) == 2 else -(-shape[-1] // 4) * 4
    count = int(numpy.prod(shape[:-1])) * columns
    quads = numpy.arange(-(-count // 4), dtype=numpy.uint64)
    counter = (quads, numpy.full_like(quads, 0x80000000 | site << 8), numpy.full_like(quads, sequence),
               numpy.full_like(quads, step))
    words = numpy.stack(philox(counter, SEED), axis=1).reshape(-1)[:count]
    words = words.reshape(*shape[:-1], columns)[..., :shape[-1]]
    p = float(numpy.float32(probability))
    kept = words >= int(p * 4294967296.0)
    return torch.from_numpy(kept * numpy.float32(1 / (1 - p)))


class Masks:
    """Stands for torch.nn.functional.dropout."""

    def begin(self, step, first_sequence, sites):
        self.step, self.first, self.left = step, first_sequence, list(sites)

    def __call__(self, values, p=0.5, training=True, inplace=False):
        if not training or p == 0:
            return values
        site = self.left.pop(0)
        return values * torch.stack([factors(values.shape[1:], p, self.step, self.first + row, site)
                                     for row in range(values.shape[0])])


# ---- both sides ----

def sluice(*arguments):
    done = subprocess.run([SLUICE, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"sluice {arguments[0]}: {done.stderr.strip()}")


def train(folder, name, checkpoint, text, lora, steps, rate):
    job = {
        "model": {"hf": str(checkpoint), "seq_length": SEQ},
        "data": {"train": [str(text)], "tokenizer": "bytes", "shuffle": "none", "mask_token": MASK},
        "run": {"dir": str(folder / name), "steps": steps, "seed": SEED},
        "train_micro_batch_size_per_gpu": MICRO_BATCH, "gradient_accumulation_steps": ACCUMULATION,
        "gradient_clipping": 0,
        "optimizer": {"type": "AdamW", "params": {"lr": rate, "betas": [0.9, 0.99], "eps": 1e-8,
                                                  "weight_decay": 0.01}},
    }
    if lora:
        job["train"] = {"lora": lora}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(job))
    sluice("train", path, "--quiet")
    lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "grad_norm" in line]


def class_of(config):
    return transformers.AutoModelForMaskedLM if config.model_type == "bert" else transformers.AutoModelForCausalLM


def rows_of(model, tokens, step):
    """Inputs and targets of a step's windows."""
    rows = []
    for row in range(step * ACCUMULATION * MICRO_BATCH, (step + 1) * ACCUMULATION * MICRO_BATCH):
        window = tokens[row * SEQ:(row + 1) * SEQ + 1].tolist()
        is_masked = model.config.model_type == "bert"
        rows.append(mask_window(window[:-1], row, 256, MASK) if is_masked else (window[:-1], window[1:]))
    return [torch.tensor([row[part] for row in rows]) for part in (0, 1)]


def load(folder, base, text, lora):
    model = class_of(transformers.AutoConfig.from_pretrained(base)).from_pretrained(
        base, dtype=torch.float32, attn_implementation="eager")
    if lora:  # with the adapters with which Sluice begins, and the dropout that it writes
        if not (folder / "first").exists():
            train(folder, "begin", base, text, lora, 1, 0)
            sluice("export", folder / "begin", folder / "first", "--adapters")
        model = PeftModel.from_pretrained(model, folder / "first", is_trainable=True)
    return model


def run_peer(model, tokens, sites, masks):
    """Loss and gradient norm of each step."""
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=LR, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        inputs, targets = rows_of(model, tokens, step)
        for micro in range(ACCUMULATION):
            first = micro * MICRO_BATCH
            masks.begin(step + 1, first, sites)
            rows = slice(first, first + MICRO_BATCH)
            logits = model(inputs[rows]).logits
            loss = functional.cross_entropy(logits.flatten(0, 1), targets[rows].flatten(), reduction="sum")
            loss = loss / (targets >= 0).sum()
            loss.backward()
            total += loss.item()
            assert not (model.training and masks.left), "a forward came to fewer dropouts"
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in learning)).item()
        yield total, norm
        optimizer.step()


def check_case(name, folder):
    global failed
    make_config, lora, before, order = CASES[name]
    config = make_config()
    torch.manual_seed(1)
    base, text = folder / "base", folder / "text.txt"
    class_of(config).from_config(config).save_pretrained(base)
    # as many windows as the steps take, and some more
    text.write_bytes(pathlib.Path(__file__).read_bytes()[:SEQ * MICRO_BATCH * ACCUMULATION * (STEPS + 1)])
    tokens = torch.tensor(list(text.read_bytes()))
    ours = train(folder, "run", base, text, lora, STEPS, LR)
    sites = before + [site for layer in range(3) for site in block_sites(layer, order)]
    masks = Masks()
    functional.dropout, true_dropout = masks, functional.dropout
    try:
        curves = []
        for drops in (True, False):
            model = load(folder, base, text, lora)
            curves.append(list(run_peer(model.train(drops), tokens, sites, masks)))
    finally:
        functional.dropout = true_dropout
    for idx, key in enumerate(("loss", "grad_norm")):
        worst, without = (max(abs(line[key] / point[idx] - 1) for line, point in zip(ours, curve)) for curve in curves)
        failed |= not worst <= BOUND or not without > 100 * BOUND
        print(f"{name:12} {key:10} differs by {worst:.1e} (at most {BOUND:.0e}), without dropout by {without:.1e}")


SLUICE = sys.argv[1]
for case in sys.argv[2:] or CASES:
    with tempfile.TemporaryDirectory(prefix="sluice-dropout-") as place:
        check_case(case, pathlib.Path(place))
sys.exit(1 if failed else 0)
