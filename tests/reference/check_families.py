#!/usr/bin/env python3
"""Compares tiny random checkpoints of every family with transformers and PEFT: one table, one row a family.

Usage: python3 check_families.py SLUICE [FAMILY ...]        SLUICE: the program, as built

Makes each checkpoint with transformers in a directory that is removed again, and lets both take five steps of AdamW
on the same tokens, ours from the same directory (model.hf) in whole units and in parts, and with windows of several
documents, which transformers takes as rows of their own. Losses of routers are those of transformers' own function, of
each micro-batch. The columns are the largest differences, relative:

  first, losses   the first loss, and those of all steps, in fp32
  gradients       norms of the gradient, in fp32
  bf16            the first loss in bf16
  export          logits of the model that Sluice trained and exported, in transformers, from the one that torch trained
  PEFT            the loss that PEFT gives with adapters that Sluice trained and exported, and its logits, from Sluice's
                  loss and from the logits of the merged export

Needs torch, transformers and peft; without them it exits with 77. README.md has the results.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import peft
    import torch
    import transformers as hf
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

from masked import mask_window

VOCAB, LENGTH, SEQUENCES, STEPS, RATE, EPSILON = 223, 64, 4, 5, 1e-3, 1e-4
TOKENS = SEQUENCES * LENGTH + 2  # as many windows as a step takes, and one token of rest: all steps see the same
DOCUMENT = 43  # tokens: a divisor of TOKENS, so that windows cut documents
# fp32: the order of sums. bf16: 8 bits of mantissa, rounded at other places; transformers, too, rounds. export: five
# steps of small differences, seen at the largest of some thousand logits.
BOUNDS = {"first": 1e-5, "losses": 1e-5, "gradients": 1e-5, "bf16": 2e-3, "export": 1e-4, "PEFT": 1e-5}
SMALL = dict(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, intermediate_size=80, max_position_embeddings=256)
GPT2 = dict(vocab_size=VOCAB, n_embd=48, n_layer=3, n_head=4, n_positions=96,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32)
# Longer sequences than the first training had, so that the second list counts.
LONGROPE = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0 + 0.1 * i for i in range(6)],
                long_factor=[1.5 + 0.4 * i for i in range(6)])
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=32)
# PyTorch gives the embedding of a padding token no gradient; here every token is one of the text.
NO_PAD = dict(pad_token_id=None, bos_token_id=None, eos_token_id=None)
BERT = dict(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=80,
            max_position_embeddings=96, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            pad_token_id=None)
MASK = 3  # data.mask_token
OPT = dict(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, ffn_dim=80,
           max_position_embeddings=96, dropout=0.0, **NO_PAD)
WIDE = {**SMALL, "hidden_size": 64}  # heads of 16 elements, of which 4 are rotated
NEOX = {key: value for key, value in WIDE.items() if key != "num_key_value_heads"} | NO_PAD
STABLELM = WIDE | NO_PAD
WINDOW = dict(sliding_window=20)  # shorter than a sequence
SLIDING, FULL = "sliding_attention", "full_attention"
GEMMA = dict(**SMALL, **WINDOW, **NO_PAD, head_dim=16, query_pre_attn_scalar=24)
QWEN2_MOE = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=40)
QWEN3_MOE = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32)
GPT_OSS = dict(num_local_experts=6, num_experts_per_tok=2, head_dim=16)
LOSSES = dict(output_router_logits=True, router_aux_loss_coef=0.5)
Z_COEF, MICRO_BATCHES = 0.3, 2  # of those
# deepseek without experts, then with. Scores and angles have factors of their own.
LATENT = {**SMALL, **NO_PAD, "num_key_value_heads": 4, "kv_lora_rank": 24, "qk_nope_head_dim": 16,
          "qk_rope_head_dim": 8, "v_head_dim": 12, "first_k_dense_replace": 3}
LATE = dict(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, first_k_dense_replace=1,
            routed_scaling_factor=1.7)
GROUPS = dict(n_group=4, topk_group=2)
DEEP = dict(mscale=0.7, mscale_all_dim=1.0)
FAMILIES = {
    "gpt2": hf.GPT2Config(**GPT2),
    "gpt2-untied": hf.GPT2Config(**GPT2, n_inner=72, tie_word_embeddings=False),
    "llama2": hf.LlamaConfig(**SMALL),
    "llama3": hf.LlamaConfig(**SMALL, tie_word_embeddings=True, rope_parameters=LLAMA3),
    "llama-linear": hf.LlamaConfig(**SMALL, rope_parameters=dict(
        rope_type="linear", rope_theta=10000.0, factor=4.0)),
    "smollm": hf.LlamaConfig(**SMALL, tie_word_embeddings=True, rms_norm_eps=1e-5),
    "mistral": hf.MistralConfig(**SMALL, head_dim=16, sliding_window=LENGTH),
    "qwen2": hf.Qwen2Config(**SMALL),
    "qwen2-tied": hf.Qwen2Config(**SMALL, tie_word_embeddings=True),
    "qwen3": hf.Qwen3Config(**SMALL, head_dim=20),
    "gpt2-gelu": hf.GPT2Config(**GPT2, activation_function="gelu"),
    "llama-bias": hf.LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    "qwen3-bias": hf.Qwen3Config(**SMALL, head_dim=20, attention_bias=True),
    "starcoder2": hf.Starcoder2Config(**SMALL),
    "phi": hf.PhiConfig(**WIDE, **NO_PAD),
    "phi-tied": hf.PhiConfig(**WIDE, **NO_PAD, tie_word_embeddings=True, hidden_act="relu", rope_parameters=dict(
        rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25)),
    "phi3": hf.Phi3Config(**SMALL, **NO_PAD),
    "gemma": hf.GemmaConfig(**SMALL, head_dim=16, **NO_PAD),
    "olmo2": hf.Olmo2Config(**SMALL),
    "olmo3": hf.Olmo3Config(**SMALL, **WINDOW, **NO_PAD, layer_types=[SLIDING, FULL, SLIDING], rope_parameters={
        SLIDING: dict(rope_type="default", rope_theta=100.0), FULL: dict(YARN)}),
    "olmo3-plain": hf.Olmo3Config(**SMALL, **WINDOW, **NO_PAD, tie_word_embeddings=True),
    "exaone4": hf.Exaone4Config(**SMALL, **WINDOW, **NO_PAD, sliding_window_pattern=2),
    "exaone4-plain": hf.Exaone4Config(**SMALL, **NO_PAD, sliding_window=None, layer_types=[FULL] * 3,
                                      tie_word_embeddings=True),
    "granite": hf.GraniteConfig(**SMALL, embedding_multiplier=12.0, attention_multiplier=0.25,
                                residual_multiplier=0.22, logits_scaling=8.0),
    "granite-bias": hf.GraniteConfig(**SMALL, attention_bias=True, mlp_bias=True, attention_multiplier=0.3),
    "gpt_neox": hf.GPTNeoXConfig(**NEOX),
    "gpt_neox-sequential": hf.GPTNeoXConfig(**NEOX, use_parallel_residual=False, tie_word_embeddings=True,
                                            rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                                                 partial_rotary_factor=1.0)),
    "cohere": hf.CohereConfig(**SMALL, **NO_PAD),
    "cohere-norms": hf.CohereConfig(**SMALL, **NO_PAD, use_qk_norm=True, attention_bias=True, logit_scale=0.3,
                                    tie_word_embeddings=False),
    "stablelm": hf.StableLmConfig(**STABLELM),
    "stablelm-parallel": hf.StableLmConfig(**STABLELM, use_qkv_bias=True, use_parallel_residual=True),
    "opt": hf.OPTConfig(**OPT),
    "opt-untied": hf.OPTConfig(**OPT, tie_word_embeddings=False, activation_function="gelu"),
    "smollm3": hf.SmolLM3Config(**SMALL, no_rope_layer_interval=2, **NO_PAD),
    "bert": hf.BertConfig(**BERT),
    "bert-relu": hf.BertConfig(**BERT, hidden_act="relu", layer_norm_eps=1e-5, type_vocab_size=3),
    "llama-yarn": hf.LlamaConfig(**SMALL, rope_parameters=dict(YARN)),
    "llama-dynamic": hf.LlamaConfig(**{**SMALL, "max_position_embeddings": 48}, rope_parameters=dict(
        rope_type="dynamic", rope_theta=10000.0, factor=2.0)),
    "qwen2-yarn": hf.Qwen2Config(**SMALL, rope_parameters=YARN | dict(truncate=False, mscale=0.8, mscale_all_dim=0.5)),
    "qwen3-yarn": hf.Qwen3Config(**SMALL, head_dim=20, rope_parameters=YARN | dict(
        beta_fast=8.0, beta_slow=2.0, attention_factor=1.3)),
    "phi3-128k": hf.Phi3Config(**SMALL, **NO_PAD, original_max_position_embeddings=32, rope_parameters=dict(LONGROPE)),
    "phi3-short": hf.Phi3Config(**SMALL, **NO_PAD, original_max_position_embeddings=128, rope_parameters=dict(LONGROPE)),
    "phi4-mini": hf.Phi3Config(**{**SMALL, "hidden_size": 64}, **NO_PAD, original_max_position_embeddings=32,
                               tie_word_embeddings=True, rope_parameters=LONGROPE | dict(partial_rotary_factor=0.75)),
    "glm": hf.GlmConfig(**SMALL, head_dim=16, **NO_PAD),
    "glm4": hf.Glm4Config(**SMALL, head_dim=16, **NO_PAD),
    "glm4-32b": hf.Glm4Config(**SMALL, head_dim=16, attention_bias=False, **NO_PAD),
    "mistral-window": hf.MistralConfig(**SMALL, **WINDOW, head_dim=16),
    "qwen2-window": hf.Qwen2Config(**SMALL, **WINDOW, use_sliding_window=True, max_window_layers=1),
    "qwen3-window": hf.Qwen3Config(**SMALL, **WINDOW, head_dim=20, use_sliding_window=True,
                                   layer_types=[FULL, SLIDING, FULL]),
    "smollm3-window": hf.SmolLM3Config(**SMALL, **WINDOW, **NO_PAD, no_rope_layer_interval=2, use_sliding_window=True),
    "phi3-window": hf.Phi3Config(**SMALL, **WINDOW, **NO_PAD),
    "starcoder2-window": hf.Starcoder2Config(**SMALL, **WINDOW),
    # Soft caps in the range of these small scores and logits, so that they act.
    "gemma2": hf.Gemma2Config(**GEMMA, attn_logit_softcapping=0.3, final_logit_softcapping=0.8),
    "gemma2-plain": hf.Gemma2Config(**GEMMA, attn_logit_softcapping=None, final_logit_softcapping=None),
    "gemma3": hf.Gemma3TextConfig(**GEMMA, layer_types=[SLIDING, FULL, SLIDING], rope_parameters={
        SLIDING: dict(rope_type="default", rope_theta=100.0),
        FULL: dict(rope_type="linear", rope_theta=10000.0, factor=4.0)}),
    "deepseek_v2": hf.DeepseekV2Config(**LATENT, q_lora_rank=None, rope_parameters=YARN | DEEP),
    "deepseek_v2-bias": hf.DeepseekV2Config(**LATENT, q_lora_rank=20, attention_bias=True, mlp_bias=True),
    "deepseek_v3": hf.DeepseekV3Config(**LATENT, q_lora_rank=28, rope_parameters=YARN | DEEP),
    "deepseek_v3-halves": hf.DeepseekV3Config(**LATENT, q_lora_rank=None, rope_interleave=False, attention_bias=True),
    "qwen3-tied": hf.Qwen3Config(**SMALL, head_dim=20, tie_word_embeddings=True),
    "mixtral": hf.MixtralConfig(**SMALL, **NO_PAD, num_local_experts=4, num_experts_per_tok=2),
    "mixtral-window": hf.MixtralConfig(**SMALL, **NO_PAD, **WINDOW, head_dim=16, num_local_experts=6),
    "mixtral-fused": hf.MixtralConfig(**SMALL, **NO_PAD, num_local_experts=4, num_experts_per_tok=2),
    "qwen2_moe": hf.Qwen2MoeConfig(**SMALL, **NO_PAD, **QWEN2_MOE),
    "qwen2_moe-fused": hf.Qwen2MoeConfig(**SMALL, **NO_PAD, **QWEN2_MOE, norm_topk_prob=True, qkv_bias=False),
    "qwen3_moe": hf.Qwen3MoeConfig(**SMALL, **NO_PAD, **QWEN3_MOE, head_dim=20, norm_topk_prob=True),
    "qwen3_moe-plain": hf.Qwen3MoeConfig(**SMALL, **NO_PAD, **QWEN3_MOE, head_dim=16, attention_bias=True,
                                         tie_word_embeddings=True),
    "qwen3_moe-uneven": hf.Qwen3MoeConfig(**SMALL, **NO_PAD, **QWEN3_MOE, head_dim=16, norm_topk_prob=True),
    "deepseek_v2-moe": hf.DeepseekV2Config(**LATENT | LATE, q_lora_rank=20, n_shared_experts=2, mlp_bias=True),
    "deepseek_v2-groups": hf.DeepseekV2Config(**LATENT | LATE | GROUPS, q_lora_rank=None, n_shared_experts=1,
                                              topk_method="group_limited_greedy"),
    "deepseek_v3-moe": hf.DeepseekV3Config(**LATENT | LATE | GROUPS, q_lora_rank=28, n_shared_experts=1,
                                           rope_parameters=YARN | DEEP),
    "deepseek_v3-plain": hf.DeepseekV3Config(**LATENT | LATE, q_lora_rank=20, n_group=1, topk_group=1,
                                             n_shared_experts=2, norm_topk_prob=False),
    "glm4_moe": hf.Glm4MoeConfig(**SMALL, **NO_PAD, **LATE, head_dim=16, use_qk_norm=True, attention_bias=True),
    "glm4_moe-groups": hf.Glm4MoeConfig(**SMALL, **NO_PAD, **LATE, **GROUPS, head_dim=20, rope_parameters=dict(
        rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.4)),
    # A limit in the range of these small gates, so that it acts.
    "gpt_oss": hf.GptOssConfig(**SMALL, **NO_PAD, **WINDOW, **GPT_OSS, swiglu_limit=0.05, rope_parameters=YARN | dict(
        truncate=False, beta_fast=32.0, beta_slow=1.0)),
    "gpt_oss-plain": hf.GptOssConfig(**SMALL, **NO_PAD, **GPT_OSS, **WINDOW, layer_types=[FULL] * 3,
                                     attention_bias=False, tie_word_embeddings=True, swiglu_limit=7.0,
                                     rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
    "olmoe": hf.OlmoeConfig(**SMALL, **NO_PAD, num_experts=6, num_experts_per_tok=2),
    # With the losses of the routers, at coefficients that change the gradient much.
    "mixtral-losses": hf.MixtralConfig(**SMALL, **NO_PAD, **LOSSES, num_local_experts=4, num_experts_per_tok=2),
    "qwen2_moe-losses": hf.Qwen2MoeConfig(**SMALL, **NO_PAD, **LOSSES, **QWEN2_MOE),
    "qwen3_moe-losses": hf.Qwen3MoeConfig(**SMALL, **NO_PAD, **LOSSES, **QWEN3_MOE, head_dim=16),
    "gpt_oss-losses": hf.GptOssConfig(**SMALL, **NO_PAD, **LOSSES, **GPT_OSS),
    "olmoe-losses": hf.OlmoeConfig(**SMALL, **NO_PAD, **LOSSES, num_experts=6, num_experts_per_tok=2),
}


def class_of(config):
    return hf.AutoModelForMaskedLM if config.model_type == "bert" else hf.AutoModelForCausalLM


def is_mixture(config):
    """Some of DeepSeek's checkpoints here have experts in no block."""
    return (hasattr(config, "num_experts_per_tok") and
            getattr(config, "first_k_dense_replace", 0) < config.num_hidden_layers)


def eager(config):
    """Arguments of from_pretrained: no fused kernels."""
    return dict(attn_implementation="eager") | (dict(experts_implementation="eager") if is_mixture(config) else {})


def make_uneven(model):
    """The first expert of each block gets all tokens, the last one none: by a channel that is large in all rows."""
    model.get_input_embeddings().weight[:, 0] = 1
    for name, router in model.named_parameters():
        if name.endswith("mlp.gate.weight"):
            router.mul_(0.2)
            router[:, 0] = 0
            router[0, 0], router[-1, 0] = 1, -1


def make_checkpoint(config, where, is_fused=False, is_uneven=False):
    torch.manual_seed(7)
    model = class_of(config).from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            # Norms and biases that are neither 0 nor 1, or they could hide mistakes.
            parameter.add_(0.2 * noise) if parameter.dim() == 1 else parameter.copy_(0.06 * noise)
        for name, parameter in model.named_parameters():
            if name.endswith(("mlp.gate.weight", "mlp.router.weight")):  # routers whose choices are far from each other
                parameter.mul_(5)
        for name, constant in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                constant.copy_(0.3 * torch.randn_like(constant))
        if is_uneven:
            make_uneven(model)
    # Published files have tensors of each expert, and transformers in memory those of all experts together.
    model.save_pretrained(where, **(dict(save_original_format=False) if is_fused else {}))


def rows_of(ids, document, is_masked=False, step=0, seed=1):
    """Inputs and targets of all windows; those of documents apart, each with what one window has of it."""
    rows = []
    for begin in range(0, SEQUENCES * LENGTH, LENGTH):
        at, end = begin, begin + LENGTH
        masked = mask_window(ids[begin:end].tolist(), step * SEQUENCES + begin // LENGTH, VOCAB, MASK, seed)
        while at < end:
            last = min(end, at - at % document + document)
            targets = ids[at + 1 : last + 1].tolist()
            if last % document == 0:
                targets[-1] = -100  # the first token of the next document
            here = slice(at - begin, last - begin)
            rows.append((masked[0][here], masked[1][here]) if is_masked else (ids[at:last].tolist(), targets))
            at = last
    return rows


def torch_model(where, dtype=torch.float32):
    config = hf.AutoConfig.from_pretrained(where)
    return class_of(config).from_pretrained(where, dtype=dtype, **eager(config))


def router_losses(model, routed):
    """The mean over the micro-batches, each of which has the router logits of all blocks in all its rows."""
    balance = sys.modules[type(model).__module__].load_balancing_loss_func
    config, sums = model.config, 0.0
    for rows in routed:
        logits = tuple(torch.cat(blocks) for blocks in zip(*rows))
        experts = logits[0].shape[-1]
        sums += config.router_aux_loss_coef * balance(logits, experts, config.num_experts_per_tok)
        sums += Z_COEF * torch.cat(logits).float().logsumexp(-1).square().mean()
    return sums / len(routed)


def torch_loss(model, rows, has_router_losses=True):
    counted = sum(target >= 0 for _, targets in rows for target in targets)
    total, tokens, routed = 0.0, 0, [[] for _ in range(MICRO_BATCHES)]
    has_router_losses = has_router_losses and getattr(model.config, "output_router_logits", False)
    for inputs, targets in rows:
        out = model(torch.tensor([inputs]))
        total += torch.nn.functional.cross_entropy(out.logits[0].float(), torch.tensor(targets), reduction="sum")
        if has_router_losses:
            routed[tokens * MICRO_BATCHES // (SEQUENCES * LENGTH)].append(out.router_logits)
        tokens += len(inputs)
    return total / counted + (router_losses(model, routed) if has_router_losses else 0.0)


def torch_steps(model, rows_in_steps):
    """Losses and norms of the gradient."""
    model.train()  # these checkpoints have no dropout
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, eps=EPSILON, weight_decay=0.0, foreach=False)
    seen = []
    for rows in rows_in_steps:
        optimizer.zero_grad()
        loss = torch_loss(model, rows)
        loss.backward()
        norm = torch.stack([p.grad.float().norm() for p in model.parameters()]).norm()
        seen.append((loss.item(), norm.item()))
        optimizer.step()
    return seen


def logits_of(model, rows):
    with torch.no_grad():
        return torch.cat([model(torch.tensor([inputs])).logits[0] for inputs, _ in rows])


def ours(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"sluice {' '.join(map(str, arguments))}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def our_steps(program, where, tokens, run, dtype="fp32", part_bytes=0, steps=STEPS, rate=RATE, train=None):
    """Losses and norms of the gradient of a run, which stays in the directory `run`."""
    job = {
        "model": {"hf": str(where), "seq_length": LENGTH, "max_part_bytes": part_bytes},
        "data": {"train": [str(tokens)], "format": "npy", "shuffle": "none", "mask_token": MASK},
        "run": {"dir": str(run), "steps": steps},
        "device": {"backend": "cpu", "threads": 1},
        "train_micro_batch_size_per_gpu": SEQUENCES, "gradient_clipping": 0.0,
        "bf16": {"enabled": dtype == "bf16"},
        "optimizer": {"type": "AdamW", "params": {"lr": rate, "eps": EPSILON, "weight_decay": 0.0}},
    }
    if train:
        job["train"] = train
    config = json.loads((where / "config.json").read_text())
    balance_coef = config.get("router_aux_loss_coef", 0) if config.get("output_router_logits") else 0
    if balance_coef:
        job["model"]["router_z_loss_coef"] = Z_COEF
        job["train_micro_batch_size_per_gpu"] = SEQUENCES // MICRO_BATCHES
        job["gradient_accumulation_steps"] = MICRO_BATCHES
    path = run.with_suffix(".json")
    path.write_text(json.dumps(job))
    ours(program, "train", path, "--quiet")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(row["loss"] + balance_coef * row.get("balance_loss", 0) + Z_COEF * row.get("router_z_loss", 0),
             row["grad_norm"]) for row in rows if "loss" in row]


def worst(a, b):
    assert len(a) == len(b) > 0
    return max(abs(x / y - 1) for x, y in zip(a, b))


def logits_apart(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


def check_adapters(program, where, tokens, rows, scratch):
    """Adapters of all linear layers of the blocks, trained at a rate that moves them far."""
    windows = scratch / "windows.npy"  # the windows of a step alone
    np.save(windows, np.load(tokens)[:SEQUENCES * LENGTH + 1])
    base = torch_model(where)
    linear = (torch.nn.Linear, hf.pytorch_utils.Conv1D)
    lora = {"rank": 4, "alpha": 16}
    if is_mixture(base.config):  # attention and the routed experts
        lora["targets"] = sorted({name.rsplit(".", 1)[1] for name, module in base.named_modules()
                                  if isinstance(module, linear) and ".self_attn." in name})
        lora["targets"] += ["experts.gate_up_proj", "experts.down_proj"]
    elif base.config.model_type != "bert":  # its head has a layer of the same name as its blocks
        lora["targets"] = sorted({name.split(".")[-1] for name, module in base.named_modules()
                                  if isinstance(module, linear) and module is not base.get_output_embeddings()
                                  # PEFT takes gate_proj and its like of these types for those of experts
                                  and not (base.config.model_type.startswith("deepseek") and ".mlp." in name)})
    run, adapters, merged = (scratch / name for name in ("lora", "adapters", "merged"))
    our_steps(program, where, tokens, run, rate=0.02, train={"lora": lora})
    ours(program, "export", run, adapters, "--adapters", "--quiet")
    ours(program, "export", run, merged, "--quiet")
    said = json.loads(ours(program, "eval", run, windows, "--data-format", "npy", "--json",
                           "--set", f"data.mask_token={MASK}"))["loss"]
    before, wanted = logits_of(base, rows), logits_of(torch_model(merged), rows)
    model = peft.PeftModel.from_pretrained(base, adapters)
    assert logits_apart(before, wanted) > 0.01
    with torch.no_grad():
        loss = torch_loss(model, rows, has_router_losses=False).item()  # eval is of the tokens alone
        return max(logits_apart(logits_of(model, rows), wanted), abs(loss / said - 1))


def check_choices(model, rows):
    """Each row's first expert has all tokens, and its last one none."""
    for inputs, _ in rows:
        for logits in model(torch.tensor([inputs]), output_router_logits=True).router_logits:
            counts = torch.bincount(logits.topk(model.config.num_experts_per_tok).indices.flatten(),
                                    minlength=logits.shape[-1])
            assert counts[0] == len(inputs) and counts[-1] == 0, counts


def depends_on_length(config):
    """transformers chooses the angles of each row by its length, ours are those of the sequence length."""
    return (getattr(config, "rope_parameters", None) or {}).get("rope_type") in ("dynamic", "longrope")


def check(program, name, scratch):
    """A row of the table."""
    where, config = scratch / "hf", FAMILIES[name]
    make_checkpoint(config, where, is_fused=name.endswith("-fused"), is_uneven=name.endswith("-uneven"))
    ids = np.random.default_rng(5).integers(0, VOCAB, TOKENS).astype("<u2")
    np.save(scratch / "joined.npy", ids)
    np.save(scratch / "documents.npy", ids.reshape(-1, DOCUMENT))
    found = dict.fromkeys(BOUNDS, 0.0)
    for data, document in (("joined", TOKENS), ("documents", DOCUMENT)):
        if data == "documents" and depends_on_length(config):
            continue
        is_masked, tokens = config.model_type == "bert", scratch / f"{data}.npy"
        steps = [rows_of(ids.astype("int64"), document, is_masked, step) for step in range(STEPS)]
        rows, model = steps[0], torch_model(where)
        losses, norms = zip(*torch_steps(model, steps))
        with torch.no_grad():
            half = torch_loss(torch_model(where, torch.bfloat16), rows).item()
        if name.endswith("-uneven"):
            check_choices(torch_model(where), rows)
        for part_bytes in (0, 50000 if is_mixture(config) else 20000):  # an expert is not cut
            run = scratch / f"{data}-{part_bytes}"
            seen, sizes = zip(*our_steps(program, where, tokens, run, part_bytes=part_bytes))
            rounded = our_steps(program, where, tokens, scratch / f"{data}-{part_bytes}-bf16", "bf16", part_bytes, 1)
            for column, apart in (("first", worst(seen[:1], losses[:1])), ("losses", worst(seen, losses)),
                                  ("gradients", worst(sizes, norms)), ("bf16", worst([rounded[0][0]], [half]))):
                found[column] = max(found[column], apart)
        if data == "joined":
            ours(program, "export", run, scratch / "exported", "--quiet")
            found["export"] = logits_apart(logits_of(torch_model(scratch / "exported"), rows), logits_of(model, rows))
            evaluated = rows_of(ids.astype("int64"), document, is_masked, 0, seed=0)
            found["PEFT"] = check_adapters(program, where, tokens, evaluated, scratch)
            shown = f"{losses[0]:.4f} -> {losses[-1]:.4f}"
    good = all(found[column] < BOUNDS[column] for column in BOUNDS)
    print(f"{name:13} {shown:17}" + "".join(f"{value:11.1e}" for value in found.values()) +
          ("" if good else "   FAILED"), flush=True)
    return good


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    torch.set_num_threads(1)  # the models are too small for more
    print(f"{'family':13} {'loss':17}" + "".join(f"{column:>11}" for column in BOUNDS))
    print(f"{'at most':31}" + "".join(f"{bound:11.0e}" for bound in BOUNDS.values()), flush=True)
    results = []
    for name in sys.argv[2:] or FAMILIES:
        with tempfile.TemporaryDirectory() as scratch:
            results.append(check(sys.argv[1], name, pathlib.Path(scratch)))
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
