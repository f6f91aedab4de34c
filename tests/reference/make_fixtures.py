#!/usr/bin/env python3
"""Makes the fp32 curves of curves.json: tiny models, trained by plain PyTorch modules.

Needs numpy and torch (CPU). Usage: python3 make_fixtures.py [TARGET_DIR]
README.md describes them. Weights, text and order of windows are not stored: both sides draw
them from the counter-based generator of src/base/rng.h, which is written again here.
"""

import json
import math
import pathlib
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional

SEED = 20240607
STEPS, MICRO_BATCH, ACCUMULATION = 50, 2, 2
CORPUS_TOKENS, CORPUS_ALPHABET = 4099, 64
STREAM_CORPUS = 0x636F7270757300
STREAM_SAMPLER = 0x73616D706C657200  # of src/data/sampler.c
MASK32 = np.uint64(0xFFFFFFFF)

TRAINING = {
    "learning_rate": 1e-3, "betas": [0.9, 0.95], "epsilon": 1e-8, "weight_decay": 0.1,
    "gradient_clipping": 1.0, "warmup_steps": 5, "warmup_min_ratio": 0.1, "cos_min_ratio": 0.1,
}
COMMON = {
    "num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 256, "seq_length": 32,
    "rope_theta": 10000.0, "norm_epsilon": 1e-5, "init_std": 0.02,
}
FAMILIES = {
    "gpt2": {"family": "gpt2", "num_kv_heads": 4, "ffn_size": 256},
    "llama": {"family": "llama", "num_kv_heads": 2, "ffn_size": 160},
}


# ---- the generator of src/base/rng.h -------------------------------------------------------------


def rng_block(seed, stream, block):
    """Philox-4x32-10: four arrays of 32-bit words (as uint64) for an array of block numbers."""
    block = np.asarray(block, dtype=np.uint64)
    c0, c1 = block & MASK32, block >> np.uint64(32)
    c2 = np.full_like(block, stream & 0xFFFFFFFF)
    c3 = np.full_like(block, stream >> 32)
    key0, key1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c2 = (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(key0), (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(key1)
        c1, c3 = p1 & MASK32, p0 & MASK32
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def rng_u64(seed, stream, idx):
    words = rng_block(seed, stream, [idx])
    return int(words[1][0]) << 32 | int(words[0][0])


def rng_below(seed, stream, idx, bound):
    return rng_u64(seed, stream, idx) * bound >> 64


def rng_normal(seed, stream, count):
    """Elements 0 .. count of a stream, fp32."""
    w0, w1, w2, w3 = rng_block(seed, stream, np.arange(count))
    a, b = w1 << np.uint64(32) | w0, w3 << np.uint64(32) | w2
    radius = ((a >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53
    angle = 6.283185307179586476925 * ((b >> np.uint64(11)).astype(np.float64) * 2.0**-53)
    return (np.sqrt(-2.0 * np.log(radius)) * np.cos(angle)).astype(np.float32)


# ---- data ----------------------------------------------------------------------------------------


def make_corpus():
    tokens = [0]
    for i in range(CORPUS_TOKENS - 1):
        noise = rng_below(SEED, STREAM_CORPUS, i, 3)
        tokens.append((5 * tokens[-1] + 17 + noise) % CORPUS_ALPHABET)
    return tokens


def permute(epoch, window_count, position):
    half_bits = 1
    while 1 << 2 * half_bits < window_count:
        half_bits += 1
    mask = (1 << half_bits) - 1
    value = position
    while True:
        left, right = value >> half_bits, value & mask
        for turn in range(6):
            mixed = rng_u64(SEED, STREAM_SAMPLER + turn, epoch << 32 | right)
            left, right = right, left ^ (mixed & mask)
        value = left << half_bits | right
        if value < window_count:
            return value


def window_begin(idx, length):
    """Where window `idx` of the engine's sampler begins, over all epochs."""
    windows = (CORPUS_TOKENS - 2) // length
    epoch = idx // windows
    rest = CORPUS_TOKENS - (windows * length + 1)
    shift = rng_below(SEED, STREAM_SAMPLER + 0xFF, epoch, rest + 1)
    return shift + permute(epoch, windows, idx % windows) * length


def learning_rate(step):
    """DeepSpeed's WarmupCosineLR with linear warm-up, for step 1, 2, ...

    The engine steps the scheduler after the optimizer, so step s runs with last_batch_iteration s - 2,
    and the first with the rate of a scheduler that has not started, 0.
    """
    t, w, n = step - 2, TRAINING["warmup_steps"], STEPS
    if t < 0:
        return 0.0
    if t < w:
        low = TRAINING["warmup_min_ratio"]
        ratio = low + (1 - low) * t / w
    else:
        low = TRAINING["cos_min_ratio"]
        ratio = low + (1 - low) * (1 + math.cos(math.pi * min(1.0, (t - w + 1) / (n - w)))) / 2
    return TRAINING["learning_rate"] * ratio


# ---- models --------------------------------------------------------------------------------------


def attention(q, k, v):
    """[B,H,T,D] each; causal."""
    length = q.shape[-2]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    hidden = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
    return torch.softmax(scores.masked_fill(hidden, -math.inf), -1) @ v


def split_heads(x, heads):
    batch, length, columns = x.shape
    return x.view(batch, length, heads, columns // heads).transpose(1, 2)


def merge_heads(x):
    batch, heads, length, dim = x.shape
    return x.transpose(1, 2).reshape(batch, length, heads * dim)


class Gpt2Block(nn.Module):
    def __init__(self, spec):
        super().__init__()
        channels, ffn, eps = spec["hidden_size"], spec["ffn_size"], spec["norm_epsilon"]
        self.heads = spec["num_heads"]
        self.ln_1, self.ln_2 = nn.LayerNorm(channels, eps), nn.LayerNorm(channels, eps)
        self.c_attn, self.attn_proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.c_fc, self.mlp_proj = nn.Linear(channels, ffn), nn.Linear(ffn, channels)

    def forward(self, x):
        q, k, v = (split_heads(part, self.heads) for part in self.c_attn(self.ln_1(x)).chunk(3, -1))
        x = x + self.attn_proj(merge_heads(attention(q, k, v)))
        return x + self.mlp_proj(functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class RmsNorm(nn.Module):
    def __init__(self, channels, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(channels)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, theta):
    """Pairs (i, i + D/2) of position t turned by t * theta^(-2i/D)."""
    length, dim = x.shape[-2:]
    speeds = theta ** (-2.0 * torch.arange(dim // 2, dtype=torch.float64) / dim)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * speeds
    cos, sin = angles.cos().float(), angles.sin().float()
    low, high = x[..., : dim // 2], x[..., dim // 2 :]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


class LlamaBlock(nn.Module):
    def __init__(self, spec):
        super().__init__()
        channels, ffn, eps = spec["hidden_size"], spec["ffn_size"], spec["norm_epsilon"]
        self.heads, self.kv_heads = spec["num_heads"], spec["num_kv_heads"]
        self.theta = spec["rope_theta"]
        kv_columns = channels // self.heads * self.kv_heads
        linear = lambda columns, rows: nn.Linear(columns, rows, bias=False)
        self.norm_1, self.norm_2 = RmsNorm(channels, eps), RmsNorm(channels, eps)
        self.q, self.k, self.v = (linear(channels, n) for n in (channels, kv_columns, kv_columns))
        self.o = linear(channels, channels)
        self.gate, self.up, self.down = linear(channels, ffn), linear(channels, ffn), linear(ffn, channels)

    def forward(self, x):
        y = self.norm_1(x)
        q = rotate(split_heads(self.q(y), self.heads), self.theta)
        k = rotate(split_heads(self.k(y), self.kv_heads), self.theta)
        v = split_heads(self.v(y), self.kv_heads)
        k, v = (part.repeat_interleave(self.heads // self.kv_heads, 1) for part in (k, v))
        x = x + self.o(merge_heads(attention(q, k, v)))
        y = self.norm_2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, spec):
        super().__init__()
        channels, vocab = spec["hidden_size"], spec["vocab_size"]
        self.spec = spec
        self.tokens = nn.Embedding(vocab, channels)
        if spec["family"] == "gpt2":
            self.positions = nn.Embedding(spec["seq_length"], channels)
            self.norm = nn.LayerNorm(channels, spec["norm_epsilon"])
        else:
            self.norm = RmsNorm(channels, spec["norm_epsilon"])
        block = Gpt2Block if spec["family"] == "gpt2" else LlamaBlock
        self.blocks = nn.ModuleList(block(spec) for _ in range(spec["num_layers"]))
        self.output = None if spec["tie_embeddings"] else nn.Linear(channels, vocab, bias=False)

    def forward(self, inputs):
        x = self.tokens(inputs)
        if self.spec["family"] == "gpt2":
            x = x + self.positions.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        matrix = self.tokens.weight if self.output is None else self.output.weight
        return self.norm(x) @ matrix.T

    def units(self):
        """Lists of (name, parameter, is residual projection) in the engine's order."""
        if self.spec["family"] == "gpt2":
            yield [("wte.weight", self.tokens.weight, False), ("wpe.weight", self.positions.weight, False)]
            for i, b in enumerate(self.blocks):
                parts = [("ln_1", b.ln_1, False), ("attn.c_attn", b.c_attn, False),
                         ("attn.c_proj", b.attn_proj, True), ("ln_2", b.ln_2, False),
                         ("mlp.c_fc", b.c_fc, False), ("mlp.c_proj", b.mlp_proj, True)]
                yield [(f"h.{i}.{name}.{kind}", getattr(module, kind), residual)
                       for name, module, residual in parts for kind in ("weight", "bias")]
            head = [("ln_f.weight", self.norm.weight, False), ("ln_f.bias", self.norm.bias, False)]
        else:
            yield [("model.embed_tokens.weight", self.tokens.weight, False)]
            for i, b in enumerate(self.blocks):
                parts = [("input_layernorm", b.norm_1, False), ("self_attn.q_proj", b.q, False),
                         ("self_attn.k_proj", b.k, False), ("self_attn.v_proj", b.v, False),
                         ("self_attn.o_proj", b.o, True), ("post_attention_layernorm", b.norm_2, False),
                         ("mlp.gate_proj", b.gate, False), ("mlp.up_proj", b.up, False),
                         ("mlp.down_proj", b.down, True)]
                yield [(f"model.layers.{i}.{name}.weight", module.weight, residual)
                       for name, module, residual in parts]
            head = [("model.norm.weight", self.norm.weight, False)]
        if self.output is not None:
            head.append(("lm_head.weight", self.output.weight, False))
        yield head

    @torch.no_grad()
    def init(self):
        std = np.float32(self.spec["init_std"])
        std_residual = np.float32(self.spec["init_std"] / math.sqrt(2.0 * self.spec["num_layers"]))
        for unit_idx, unit in enumerate(self.units()):
            for tensor_idx, (name, parameter, residual) in enumerate(unit):
                if parameter.dim() == 1:
                    parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                    continue
                values = rng_normal(SEED, unit_idx << 32 | tensor_idx, parameter.numel())
                values = values * (std_residual if residual else std)
                parameter.copy_(torch.from_numpy(values).view_as(parameter))


# ---- training ------------------------------------------------------------------------------------


def train(spec):
    corpus = torch.tensor(make_corpus())
    length = spec["seq_length"]
    begins = [window_begin(i, length) for i in range(STEPS * ACCUMULATION * MICRO_BATCH)]
    model = Model(spec)
    model.init()
    named = [(name, parameter) for unit in model.units() for name, parameter, _ in unit]
    optimizer = torch.optim.AdamW([parameter for _, parameter in named], lr=0.0,
                                  betas=TRAINING["betas"], eps=TRAINING["epsilon"],
                                  weight_decay=TRAINING["weight_decay"], foreach=False)
    losses, norms, rates, tensor_norms = [], [], [], {}
    next_window = iter(begins)
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        step_loss = 0.0
        for _ in range(ACCUMULATION):
            rows = [corpus[b : b + length + 1] for b in (next(next_window) for _ in range(MICRO_BATCH))]
            batch = torch.stack(rows)
            logits = model(batch[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            (loss / ACCUMULATION).backward()
            step_loss += loss.item() / ACCUMULATION
        if step == 1:
            tensor_norms = {name: parameter.grad.double().norm().item() for name, parameter in named}
        norm = torch.nn.utils.clip_grad_norm_([p for _, p in named], TRAINING["gradient_clipping"])
        rates.append(learning_rate(step))
        for group in optimizer.param_groups:
            group["lr"] = rates[-1]
        optimizer.step()
        losses.append(step_loss)
        norms.append(norm.item())
    weights = {name: parameter.detach().double().norm().item() for name, parameter in named}
    return {
        "window_begins": begins, "learning_rates": rates, "losses": losses, "grad_norms": norms,
        "first_grad_norms": tensor_norms, "final_weight_norms": weights,
    }


def put_curve(target, name, fixture):
    """Puts a curve into curves.json, which holds all of them by name."""
    path = target / "curves.json"
    curves = json.loads(path.read_text()) if path.exists() else {}
    curves[name] = fixture
    # a member of a curve is a line
    members = {key: ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in curve.items())
               for key, curve in curves.items()}
    path.write_text("{\n" + ",\n".join(f" {json.dumps(k)}: {{\n{m}\n }}" for k, m in members.items()) + "\n}\n")


def main():
    target = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for family, own in FAMILIES.items():
        for tied in (True, False):
            spec = {**own, **COMMON, "tie_embeddings": tied}
            fixture = {
                "format": 1, "made_by": f"torch {torch.__version__}", "seed": SEED, "model": spec,
                "corpus": {"tokens": CORPUS_TOKENS, "alphabet": CORPUS_ALPHABET},
                "steps": STEPS, "micro_batch": MICRO_BATCH, "accumulation": ACCUMULATION,
                "training": TRAINING, **train(spec),
            }
            name = f"{family}-{'tied' if tied else 'untied'}"
            put_curve(target, name, fixture)
            print(f"{name}: loss {fixture['losses'][0]:.5f} -> {fixture['losses'][-1]:.5f}")


if __name__ == "__main__":
    main()
