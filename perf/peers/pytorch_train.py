#!/usr/bin/env python3
"""PyTorch's side of perf/peers/compare.py: trains GPT-2 on the CPU, one step for each line that it reads.

    perf/peers/pytorch_train.py --tokens FILE [--dtype bf16|fp32] [--length T] [--batch B] [--compile] [--model plain|hf|mixture]

Answers "ready", then "seconds loss" for each line; it ends at the end of its input. Both sides have the same model
(GPT-2's shape, tied embeddings, tanh GELU, no dropout), the same tokens in the same order, AdamW in fp32 (here fused),
clipping of the gradient's norm at 1.0, and bf16 (here by autocast) with fp32 weights. `plain` is a short model with torch's
fused attention; `hf` is transformers' GPT2LMHeadModel; `mixture` its Qwen3MoeForCausalLM with experts in a loop (eager).

--by says what trains the model. All except torch and fsdp2 write files to the folder that --folder names:
  torch        PyTorch's own loop, all in memory
  zero3-nvme   DeepSpeed's ZeRO-3 with parameters and optimizer on the drive; in bf16 its weights are bf16
  zero3-cpu    the same in host memory
  fsdp2        torch's fully_shard of each block, offloaded to the CPU
  engine, engine-host, engine-nvme   sluice.torch.Engine with all states in the device's budget, in host memory, on the drive
The exit status is 3, with the reason, if a package is not installed.
"""

import argparse
import os
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


class Mixture(nn.Module):
    def __init__(self, layers, width, heads, vocab, length):
        super().__init__()
        from transformers import AutoModelForCausalLM, Qwen3MoeConfig
        self.model = AutoModelForCausalLM.from_config(Qwen3MoeConfig(
            vocab_size=vocab, max_position_embeddings=length, hidden_size=width, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=heads // 2, head_dim=64, num_experts=16,
            num_experts_per_tok=2, moe_intermediate_size=width, norm_topk_prob=True, tie_word_embeddings=True,
            pad_token_id=None), attn_implementation="sdpa", experts_implementation="eager")

    def forward(self, ids):
        return self.model(ids, use_cache=False).logits


def plain_stepper(options, model):
    """Returns a function that makes a step of the given micro-batches and returns the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(model) if options.compile else model

    def step(pieces):
        for source, target in pieces:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.dtype == "bf16"):
                logits = forward(source)
                loss = functional.cross_entropy(logits.view(-1, options.vocab), target)
            (loss / len(pieces)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()
    return step


def alone():
    """Sets what launchers set, for one rank."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")


def zero3_stepper(options, model):
    """The same by DeepSpeed. Its buffers hold the largest parameter, the embedding; its other settings are those of its
    own examples for NVMe."""
    alone()
    os.environ["DS_ACCELERATOR"] = "cpu"
    on_drive = options.by == "zero3-nvme"
    try:
        import deepspeed
        from deepspeed.ops.op_builder import AsyncIOBuilder
        if on_drive and not AsyncIOBuilder().is_compatible():
            raise ImportError("its asynchronous I/O does not build here (libaio-dev?)")
    except Exception as error:
        print("absent deepspeed: %s" % str(error).split("\n")[0], flush=True)
        sys.exit(3)
    largest = options.vocab * options.width
    home = {"device": "nvme", "nvme_path": options.folder, "pin_memory": False} if on_drive else {"device": "cpu"}
    config = {
        "train_micro_batch_size_per_gpu": options.batch, "gradient_accumulation_steps": options.accumulation,
        "gradient_clipping": 1.0, "bf16": {"enabled": options.dtype == "bf16"},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "sub_group_size": largest,
                              "offload_param": dict(home, buffer_count=5, buffer_size=largest + (1 << 20)),
                              "offload_optimizer": dict(home, buffer_count=12, pipeline_read=on_drive,
                                                        pipeline_write=on_drive)},
        "aio": {"block_size": 1 << 20, "queue_depth": 16, "intra_op_parallelism": 2, "single_submit": False,
                "overlap_events": True},
        "steps_per_print": 1 << 30,
    }
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    return engine_stepper(engine, options)


def fsdp2_stepper(options, model):
    """torch's own offload: each block, then the rest, is a group that is brought and taken away. AdamW runs on the CPU."""
    import torch.distributed as distributed
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
    alone()
    distributed.init_process_group("gloo")
    offload = CPUOffloadPolicy(pin_memory=False)
    for block in next(m for m in model.modules() if isinstance(m, nn.ModuleList)):
        fully_shard(block, offload_policy=offload)
    fully_shard(model, offload_policy=offload)
    return plain_stepper(options, model)


def sluice_stepper(options, model):
    """The same by sluice.torch.Engine."""
    try:
        import sluice
        import sluice.torch
    except ImportError as error:
        print("absent sluice: %s" % error, flush=True)
        sys.exit(3)
    home = {"engine": "device", "engine-host": "host", "engine-nvme": "nvme"}[options.by]
    budgets = {"device": ("8GiB", "1GiB"), "host": ("1GiB", "8GiB"), "nvme": ("1GiB", "1GiB")}[home]
    blocks = ["%s.%d" % (name, i) for name, part in model.named_modules() if isinstance(part, nn.ModuleList)
              for i in range(len(part))]
    engine = sluice.torch.Engine(
        model, units=blocks, optimizer=sluice.AdamW(lr=1e-4, weight_decay=0.01), device=budgets[0],
        host=budgets[1], nvme=[os.path.join(options.folder, "drive")], run_dir=os.path.join(options.folder, "run"), fresh=True,
        config={"gradient_clipping": 1.0, "gradient_accumulation_steps": options.accumulation,
                "tiers": {"place": {"params": home, "grads": home, "optimizer": home}}})
    return engine_stepper(engine, options)


def engine_stepper(engine, options):
    """A step of an engine, which counts micro-batches by itself; DeepSpeed's and ours have the same three calls."""
    def step(pieces):
        for source, target in pieces:
            logits = engine(source)
            loss = functional.cross_entropy(logits.float().view(-1, options.vocab), target)
            engine.backward(loss)
            engine.step()
        return loss.item()
    return step


STEPPERS = {"torch": plain_stepper, "zero3-nvme": zero3_stepper, "zero3-cpu": zero3_stepper, "fsdp2": fsdp2_stepper,
            "engine": sluice_stepper, "engine-host": sluice_stepper, "engine-nvme": sluice_stepper}


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
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--by", choices=STEPPERS, default="torch")
    parser.add_argument("--folder", help="for files of DeepSpeed or Sluice")
    parser.add_argument("--model", choices=("plain", "hf", "mixture"), default="plain")
    options = parser.parse_args()
    torch.manual_seed(1)
    if options.threads:
        torch.set_num_threads(options.threads)
    kind = {"plain": Plain, "hf": Published, "mixture": Mixture}[options.model]
    model = kind(options.layers, options.width, options.width // 64, options.vocab, options.length)
    model.train()
    make_step = STEPPERS[options.by](options, model)
    with open(options.tokens, "rb") as file:
        ids = torch.frombuffer(bytearray(file.read()), dtype=torch.uint16).to(torch.int64)
    print("ready", flush=True)
    step, batch, length = 0, options.batch, options.length
    for _ in sys.stdin:
        begin = time.perf_counter()
        pieces = []
        for _ in range(options.accumulation):
            first = (step * batch * length) % (len(ids) - batch * length - 1)
            pieces.append((ids[first: first + batch * length].view(batch, length), ids[first + 1: first + batch * length + 1]))
            step += 1
        value = make_step(pieces)
        print("%.9f %.9g" % (time.perf_counter() - begin, value), flush=True)


if __name__ == "__main__":
    main()
