#!/usr/bin/env python3
"""PyTorch's side of perf/peers/compare.py: trains GPT-2 on the CPU, one step for each line that it reads.

    perf/peers/pytorch_train.py --tokens FILE [--dtype bf16|fp32] [--length T] [--batch B] [--compile] [--model plain|hf] [...]

Answers "ready", then "seconds loss" for each line; it ends at the end of its input. Both sides have the same model
(GPT-2's shape, tied embeddings, tanh GELU, no dropout), the same tokens in the same order, AdamW in fp32 (here fused),
clipping of the gradient's norm at 1.0, and bf16 (here by autocast) with fp32 weights. `plain` is a short model with torch's
fused attention; `hf` is transformers' GPT2LMHeadModel.
"""

import argparse
import sys
import time

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Plain(nn.Module):
    def __init__(self, layers, width, heads, vocab, length):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.tokens.weight)


class Published(nn.Module):
    def __init__(self, layers, width, heads, vocab, length):
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel
        self.model = GPT2LMHeadModel(GPT2Config(
            vocab_size=vocab, n_positions=length, n_embd=width, n_layer=layers, n_head=heads, resid_pdrop=0,
            embd_pdrop=0, attn_pdrop=0, attn_implementation="sdpa"))

    def forward(self, ids):
        return self.model(ids, use_cache=False).logits


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", required=True, help="file of 16-bit ids")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--threads", type=int, default=0, help="0: PyTorch chooses")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--model", choices=("plain", "hf"), default="plain")
    options = parser.parse_args()
    torch.manual_seed(1)
    if options.threads:
        torch.set_num_threads(options.threads)
    kind = Plain if options.model == "plain" else Published
    model = kind(options.layers, options.width, options.width // 64, options.vocab, options.length)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(model) if options.compile else model
    with open(options.tokens, "rb") as file:
        ids = torch.frombuffer(bytearray(file.read()), dtype=torch.uint16).to(torch.int64)
    print("ready", flush=True)
    step, batch, length = 0, options.batch, options.length
    for _ in sys.stdin:
        begin = time.perf_counter()
        first = (step * batch * length) % (len(ids) - batch * length - 1)
        source = ids[first: first + batch * length].view(batch, length)
        target = ids[first + 1: first + batch * length + 1]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.dtype == "bf16"):
            logits = forward(source)
            loss = functional.cross_entropy(logits.view(-1, options.vocab), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        print("%.9f %.9g" % (time.perf_counter() - begin, value), flush=True)
        step += 1


if __name__ == "__main__":
    main()
