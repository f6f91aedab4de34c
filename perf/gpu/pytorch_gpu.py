#!/usr/bin/env python3
"""PyTorch on the job llama-1b-resident of perf/gpu/jobs.txt, for comparison in perf/gpu/gpu.sh.

The shape of Llama 3.2 1B, every state in device memory, 64K tokens per step in 4 micro-batches of 4
sequences, bf16 weights, gradients and moments, fused AdamW, scaled_dot_product_attention, each block
checkpointed (its inner activations are recomputed in the backward pass, as in the job), clipping by the
global norm. Sluice's fp32 states and gradient sums cost more memory traffic, so the comparison favours
PyTorch. Prints the median over the steps without the first two.
"""
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

QUICK = "--quick" in sys.argv[1:]
LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB = (
    (2, 64, 4, 2, 128, 256) if QUICK else (16, 2048, 32, 8, 8192, 128256)
)
TOKENS, SEQUENCES, MICRO_BATCHES = (32, 2, 2) if QUICK else (4096, 4, 4)
STEPS, WARM_STEPS = 8, 2


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head_dim = HIDDEN // HEADS
        columns = (HEADS + 2 * KV_HEADS) * self.head_dim
        self.norm1 = torch.nn.RMSNorm(HIDDEN, eps=1e-5)
        self.qkv = torch.nn.Linear(HIDDEN, columns, bias=False)
        self.proj = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.norm2 = torch.nn.RMSNorm(HIDDEN, eps=1e-5)
        self.gate_up = torch.nn.Linear(HIDDEN, 2 * FFN, bias=False)
        self.down = torch.nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x, cos, sin):
        batch, tokens, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, -1, self.head_dim).transpose(1, 2)
        q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.proj(out.transpose(1, 2).reshape(batch, tokens, HIDDEN))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def turn(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, HIDDEN)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = torch.nn.RMSNorm(HIDDEN, eps=1e-5)
        half = HIDDEN // HEADS // 2
        angles = torch.outer(
            torch.arange(TOKENS, dtype=torch.float64),
            500000.0 ** (-torch.arange(half, dtype=torch.float64) / half),
        )
        self.register_buffer("cos", angles.cos().float())
        self.register_buffer("sin", angles.sin().float())

    def forward(self, ids, targets):
        x = self.embed(ids)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        for block in self.blocks:
            x = checkpoint(block, x, cos, sin, use_reentrant=False)
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def main():
    torch.manual_seed(1)
    device = torch.device("cuda")
    with device:
        model = Model().to(torch.bfloat16)
        for weight in model.parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.02)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True
    )
    windows = torch.randint(VOCAB, (MICRO_BATCHES, SEQUENCES, TOKENS + 1), device=device)
    step_tokens = MICRO_BATCHES * SEQUENCES * TOKENS
    weights = sum(p.numel() for p in model.parameters())
    flops = 6 * weights * step_tokens + 6 * LAYERS * HIDDEN * TOKENS * step_tokens
    seconds = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for window in windows:
            (model(window[:, :-1], window[:, 1:].contiguous()) / MICRO_BATCHES).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds[WARM_STEPS:])
    print(
        f"{'pytorch ' + torch.__version__:<26} {step_tokens / median:9.0f} {flops / median * 1e-12:8.1f}"
        f"   the same 1B job; {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most"
    )


if __name__ == "__main__":
    main()
