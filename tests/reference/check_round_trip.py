#!/usr/bin/env python3
"""Checkpoints through sluice import and export and back, with transformers on both sides.

Usage: python3 check_round_trip.py SLUICE [FAMILY ...]        SLUICE: the program, as built

Each family's tiny random checkpoint (check_families.py makes them) in fp32, bf16 and fp16, in one file and in
several, is imported and exported: tensors are the same bit for bit. transformers loads the export, and its loss is
ours (sluice eval) on the same tokens, of the import and of a run that was trained on; models that never came from
Hugging Face are exported and loaded, too. Needs torch and transformers; without them it exits with 77.
"""

import json
import pathlib
import sys
import tempfile

try:
    import numpy as np
    import torch
    import transformers as hf
    from safetensors import safe_open
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

from check_families import FAMILIES, LENGTH, MASK, VOCAB, class_of, eager, make_checkpoint, ours
from masked import mask_window

LIMITS = {"fp32": 1e-5, "bf16": 2e-3, "fp16": 2e-3}
TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WINDOWS = 8
SMALL = {"num_layers": 2, "hidden_size": 48, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 80}
# deepseek: all blocks have a plain feed-forward part.
LATENT = {**SMALL, "num_kv_heads": 4, "head_dim": 24, "rope_head_dim": 8, "kv_latent_size": 24, "value_head_dim": 12,
          "first_k_dense_replace": 2}
LISTS = {"type": "longrope", "factor": 2.5, "original_max_position_embeddings": 32,
         "short_factor": [1.0] * 6, "long_factor": [1.5, 2.0, 2.5, 3.0, 3.5, 4.0]}
GEMMA = {"embedding_multiplier": 48**0.5, "attention_multiplier": 24**-0.5, "window": 20, "window_pattern": "wf"}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2}
OWN_MODELS = {
    "own-gpt2": {"family": "gpt2", "num_layers": 2, "hidden_size": 48, "num_heads": 4},
    "own-llama": {"family": "llama", "num_layers": 2, "hidden_size": 48, "num_heads": 4,
                  "num_kv_heads": 2, "ffn_size": 80, "rope_theta": 50000.0},
    "own-llama3": {"family": "llama", "num_layers": 2, "hidden_size": 48, "num_heads": 4, "ffn_size": 80,
                   "tie_embeddings": True,
                   "rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                    "high_freq_factor": 4.0, "original_max_position_embeddings": 32}},
    "own-qwen2": {"family": "llama", "num_layers": 2, "hidden_size": 48, "num_heads": 4, "ffn_size": 80,
                  "qkv_bias": True},
    "own-qwen3": {"family": "llama", "num_layers": 2, "hidden_size": 48, "num_heads": 4, "ffn_size": 80,
                  "qk_norm": True, "head_dim": 20},
    "own-bias": {"family": "llama", **SMALL, "qkv_bias": True, "out_bias": True, "mlp_bias": True},
    "own-granite": {"family": "llama", **SMALL, "embedding_multiplier": 12.0, "logits_scaling": 8.0},
    "own-smollm3": {"family": "llama", **SMALL, "nope_interval": 2},
    "own-starcoder2": {"family": "starcoder2", **SMALL},
    "own-phi": {"family": "phi", **SMALL, "partial_rotary_factor": 0.5},
    "own-phi-tied": {"family": "phi", **SMALL, "tie_embeddings": True},
    "own-phi3": {"family": "phi3", **SMALL},
    "own-gemma": {"family": "gemma", **SMALL, "embedding_multiplier": 48**0.5},
    "own-olmo2": {"family": "olmo2", **SMALL},
    "own-olmo3": {"family": "olmo2", **SMALL, "window": 20, "window_pattern": "wf", "window_rope_theta": 100.0,
                  "rope_scaling": {"type": "linear", "factor": 4.0}},
    "own-exaone4": {"family": "exaone4", **SMALL, "window": 20, "window_pattern": "wf", "nope_interval": 2},
    "own-deepseek": {"family": "deepseek", **LATENT, "q_latent_size": 20, "rope_scaling": {
        "type": "yarn", "factor": 2.5, "original_max_position_embeddings": 32, "mscale": 0.7, "mscale_all_dim": 1.0}},
    "own-deepseek-direct": {"family": "deepseek", **LATENT, "rope_halves": True, "qkv_bias": True, "out_bias": True},
    "own-bert": {"family": "bert", "num_layers": 2, "hidden_size": 48, "num_heads": 4, "ffn_size": 80},
    "own-gpt_neox": {"family": "gpt_neox", "num_layers": 2, "hidden_size": 64, "num_heads": 4,
                     "parallel_residual": True, "partial_rotary_factor": 0.25},
    "own-cohere": {"family": "cohere", **SMALL, "qk_norm": True, "logits_scaling": 16.0},
    "own-stablelm": {"family": "stablelm", **SMALL, "qkv_bias": True},
    "own-stablelm-parallel": {"family": "stablelm", **SMALL, "parallel_residual": True,
                              "partial_rotary_factor": 0.5},
    "own-opt": {"family": "opt", "num_layers": 2, "hidden_size": 48, "num_heads": 4},
    "own-yarn": {"family": "llama", **SMALL, "rope_scaling": {
        "type": "yarn", "factor": 2.5, "original_max_position_embeddings": 32, "beta_fast": 8.0, "truncate": False}},
    "own-dynamic": {"family": "llama", **SMALL, "rope_scaling": {
        "type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 48}},
    "own-longrope": {"family": "llama", **SMALL, "rope_scaling": {**LISTS, "attention_factor": 1.1}},
    "own-phi4-mini": {"family": "phi3", **SMALL, "hidden_size": 64, "tie_embeddings": True,
                      "partial_rotary_factor": 0.75, "rope_scaling": LISTS},
    "own-glm": {"family": "glm", **SMALL, "partial_rotary_factor": 0.5},
    "own-glm4": {"family": "glm4", **SMALL, "partial_rotary_factor": 0.5, "qkv_bias": False},
    "own-mistral": {"family": "llama", **SMALL, "window": 20},
    "own-qwen2-window": {"family": "llama", **SMALL, "qkv_bias": True, "window": 20, "window_pattern": "fw"},
    "own-smollm3-window": {"family": "llama", **SMALL, "nope_interval": 2, "window": 20, "window_pattern": "fw"},
    "own-phi3-window": {"family": "phi3", **SMALL, "window": 20},
    "own-gemma2": {"family": "gemma2", **SMALL, **GEMMA, "attention_soft_cap": 0.3, "logits_soft_cap": 0.8},
    "own-gemma3": {"family": "gemma2", **SMALL, **GEMMA, "qk_norm": True, "window_rope_theta": 100.0,
                   "rope_scaling": {"type": "linear", "factor": 4.0}},
    "own-mixtral": {"family": "mixtral", **SMALL, **EXPERTS, "norm_topk_prob": True, "window": 20},
    "own-qwen2_moe": {"family": "qwen2_moe", **SMALL, **EXPERTS, "qkv_bias": True, "shared_ffn_size": 40,
                      "expert_ffn_size": 32},
    "own-qwen3_moe": {"family": "qwen3_moe", **SMALL, **EXPERTS, "qk_norm": True, "head_dim": 20, "expert_ffn_size": 32},
    "own-qwen3_moe-bias": {"family": "qwen3_moe", **SMALL, **EXPERTS, "qk_norm": True, "qkv_bias": True,
                           "out_bias": True, "norm_topk_prob": True, "tie_embeddings": True},
    "own-gpt_oss": {"family": "gpt_oss", **SMALL, **EXPERTS, "qkv_bias": True, "out_bias": True, "head_dim": 16,
                    "window": 20, "window_pattern": "wf", "swiglu_limit": 0.05},
    "own-olmoe": {"family": "olmoe", **SMALL, **EXPERTS, "expert_ffn_size": 48, "experts_per_unit": 3},
}


def tensors(where):
    found = {}
    for path in sorted(where.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                found[name] = file.get_tensor(name)
    return found


def assert_same(before, after, what):
    a, b = tensors(before), tensors(after)
    if set(a) != set(b):
        sys.exit(f"{what}: tensors {sorted(set(a) ^ set(b))[:5]} are in one of them alone")
    for name in a:
        if a[name].dtype != b[name].dtype or a[name].shape != b[name].shape:
            sys.exit(f"{what}: {name} was {a[name].dtype} {a[name].shape}, is {b[name].dtype} {b[name].shape}")
        if not torch.equal(a[name].view(torch.uint8), b[name].view(torch.uint8)):
            sys.exit(f"{what}: {name} has other bits")


def torch_loss(where, windows, dtype):
    config = hf.AutoConfig.from_pretrained(where)
    model, info = class_of(config).from_pretrained(
        where, dtype="auto", **eager(config), output_loading_info=True)
    if model.dtype != TORCH[dtype] or info["missing_keys"] or info["unexpected_keys"]:
        sys.exit(f"{where}: loads as {model.dtype}, {info}")
    batch = torch.tensor(windows)
    inputs, targets = batch[:, :-1], batch[:, 1:]
    if config.model_type == "bert":
        masked = [mask_window(ids[:-1], window, VOCAB, MASK, seed=0) for window, ids in enumerate(windows)]
        inputs, targets = (torch.tensor([row[part] for row in masked]) for part in (0, 1))
    with torch.no_grad():
        logits = model(inputs).logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()


def compare_loss(sluice, run, export, tokens, windows, dtype, what):
    """The same tokens: one file, whose windows follow each other as ours do."""
    said = json.loads(ours(sluice, "eval", run, tokens, "--data-format", "u16", "--context", LENGTH, "--json",
                           "--set", f"data.mask_token={MASK}"))
    wanted = torch_loss(export, windows, dtype)
    if abs(said["loss"] - wanted) > LIMITS[dtype]:
        sys.exit(f"{what}: our loss is {said['loss']:.8f}, that of transformers {wanted:.8f}")
    return abs(said["loss"] - wanted)


def job_of(model, run, tokens, dtype):
    return {
        "model": model, "data": {"train": [str(tokens)], "format": "u16", "mask_token": MASK},
        "run": {"dir": str(run), "steps": 5}, "device": {"backend": "cpu"},
        "train_micro_batch_size_per_gpu": 2, dtype: {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    }


def train(sluice, scratch, job, dtype):
    if dtype == "fp32":
        del job["fp32"]
    path = scratch / "job.json"
    path.write_text(json.dumps(job))
    ours(sluice, "train", path, "--quiet")


def check_family(sluice, name, tokens, windows, scratch):
    worst = {}
    for dtype in TORCH:
        made, run, again = (scratch / f"{part}-{dtype}" for part in ("hf", "run", "again"))
        make_checkpoint(FAMILIES[name], scratch / "fp32")
        model = class_of(FAMILIES[name]).from_pretrained(scratch / "fp32", dtype=TORCH[dtype])
        # Norms and routers, too, which some families keep in fp32. Corrections of routers are no parameters, and are
        # fp32 in published checkpoints of any dtype.
        for parameter in model.parameters():
            parameter.data = parameter.data.to(TORCH[dtype])
        model.save_pretrained(made, max_shard_size="40KB" if dtype == "bf16" else "5GB")
        ours(sluice, "import", made, run, "--quiet", "--set", f"model.seq_length={LENGTH}")
        ours(sluice, "export", run, again, "--quiet", "--shard-size", "40KB" if dtype == "fp32" else "5GB")
        assert_same(made, again, f"{name} in {dtype}")
        was, new = (json.loads((where / "config.json").read_text()) for where in (made, again))
        if was != new:
            sys.exit(f"{name} in {dtype}: config.json is another one")
        gap = compare_loss(sluice, run, again, tokens, windows, dtype, f"{name} in {dtype}, imported")
        # Trained on from the import, and its commit exported.
        train(sluice, scratch, job_of({"hf": str(made), "seq_length": LENGTH}, run, tokens, dtype), dtype)
        ours(sluice, "export", run, scratch / f"trained-{dtype}", "--quiet")
        more = compare_loss(sluice, run, scratch / f"trained-{dtype}", tokens, windows, dtype,
                            f"{name} in {dtype}, trained")
        worst[dtype] = max(gap, more)
    return worst


def check_own(sluice, name, tokens, windows, scratch):
    worst = {}
    for dtype in TORCH:
        run, made = scratch / f"run-{dtype}", scratch / f"hf-{dtype}"
        block = dict(OWN_MODELS[name], vocab_size=VOCAB, seq_length=LENGTH)
        train(sluice, scratch, job_of(block, run, tokens, dtype), dtype)
        ours(sluice, "export", run, made, "--quiet")
        worst[dtype] = compare_loss(sluice, run, made, tokens, windows, dtype, f"{name} in {dtype}")
        # And back: what was exported is a checkpoint like any other.
        ours(sluice, "import", made, scratch / f"back-{dtype}", "--quiet")
        ours(sluice, "export", scratch / f"back-{dtype}", scratch / f"again-{dtype}", "--quiet")
        assert_same(made, scratch / f"again-{dtype}", f"{name} in {dtype}")
    return worst


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sluice = str(pathlib.Path(sys.argv[1]).resolve())
    hf.logging.set_verbosity_error()
    hf.utils.logging.disable_progress_bar()
    names = sys.argv[2:] or list(FAMILIES) + list(OWN_MODELS)
    draws = np.random.default_rng(5).integers(0, VOCAB, WINDOWS * LENGTH + 1).astype("<u2")
    windows = [draws[i * LENGTH:(i + 1) * LENGTH + 1].astype(np.int64).tolist() for i in range(WINDOWS)]
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            scratch = pathlib.Path(place)
            tokens = scratch / "tokens.bin"
            tokens.write_bytes(draws.tobytes())
            check = check_own if name in OWN_MODELS else check_family
            worst = check(sluice, name, tokens, windows, scratch)
            print(f"{name:14} same bits; losses differ by " +
                  ", ".join(f"{gap:.1e} ({dtype})" for dtype, gap in worst.items()), flush=True)


if __name__ == "__main__":
    main()
