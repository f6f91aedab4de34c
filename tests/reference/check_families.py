#!/usr/bin/env python3
"""Compares losses and gradients of tiny random checkpoints of every family with those of transformers.

Usage: python3 check_families.py SLUICE [FAMILY ...]        SLUICE: the program, as built

Makes each checkpoint with transformers in a directory that is removed again, and lets both take a few
steps of AdamW on the same tokens, ours from the same directory (model.hf) in whole units and in parts, and with
windows of several documents, which transformers takes as rows of their own: losses and norms of the gradient in
fp32; the first step's in bf16. Needs torch and transformers; without
them it exits with 77. README.md has the results.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import torch
    import transformers as hf
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

from masked import mask_window

VOCAB, LENGTH, SEQUENCES, STEPS, RATE, EPSILON = 223, 64, 4, 4, 1e-3, 1e-4
TOKENS = SEQUENCES * LENGTH + 2  # as many windows as a step takes, and one token of rest: all steps see the same
DOCUMENT = 43  # tokens: a divisor of TOKENS, so that windows cut documents
# fp32: the order of sums. bf16: 8 bits of mantissa, rounded at other places; transformers, too, rounds.
LOSS_FP32, NORM_FP32, LOSS_BF16 = 1e-5, 1e-4, 2e-3
SMALL = dict(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, intermediate_size=80, max_position_embeddings=256)
GPT2 = dict(vocab_size=VOCAB, n_embd=48, n_layer=3, n_head=4, n_positions=96,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
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
    "phi3": hf.Phi3Config(**SMALL, **NO_PAD),
    "gemma": hf.GemmaConfig(**SMALL, head_dim=16, **NO_PAD),
    "olmo2": hf.Olmo2Config(**SMALL),
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
    "qwen3-tied": hf.Qwen3Config(**SMALL, head_dim=20, tie_word_embeddings=True),
}


def class_of(config):
    return hf.AutoModelForMaskedLM if config.model_type == "bert" else hf.AutoModelForCausalLM


def make_checkpoint(config, where):
    torch.manual_seed(7)
    model = class_of(config).from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            # Norms and biases that are neither 0 nor 1, or they could hide mistakes.
            parameter.add_(0.2 * noise) if parameter.dim() == 1 else parameter.copy_(0.06 * noise)
    model.save_pretrained(where)


def rows_of(ids, document, is_masked, step):
    """Inputs and targets of all windows; those of documents apart, each with what one window has of it."""
    rows = []
    for begin in range(0, SEQUENCES * LENGTH, LENGTH):
        at, end = begin, begin + LENGTH
        masked = mask_window(ids[begin:end].tolist(), step * SEQUENCES + begin // LENGTH, VOCAB, MASK)
        while at < end:
            last = min(end, at - at % document + document)
            targets = ids[at + 1 : last + 1].tolist()
            if last % document == 0:
                targets[-1] = -100  # the first token of the next document
            here = slice(at - begin, last - begin)
            rows.append((masked[0][here], masked[1][here]) if is_masked else (ids[at:last].tolist(), targets))
            at = last
    return rows


def torch_steps(where, rows_in_steps, dtype):
    config = hf.AutoConfig.from_pretrained(where)
    model = class_of(config).from_pretrained(where, dtype=dtype, attn_implementation="eager")
    model.train()  # these checkpoints have no dropout
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, eps=EPSILON, weight_decay=0.0,
                                  foreach=False)
    rows = []
    for rows_in in rows_in_steps:
        counted = sum(target >= 0 for _, targets in rows_in for target in targets)
        optimizer.zero_grad()
        loss = sum(torch.nn.functional.cross_entropy(model(torch.tensor([inputs])).logits[0].float(), torch.tensor(targets),
                                                     reduction="sum") for inputs, targets in rows_in) / counted
        loss.backward()
        norm = torch.stack([p.grad.float().norm() for p in model.parameters()]).norm()
        rows.append((loss.item(), norm.item()))
        optimizer.step()
    return rows


def our_steps(sluice, where, tokens, scratch, dtype, part_bytes):
    run = scratch / f"run-{tokens.name}-{dtype}-{part_bytes}"
    job = {
        "model": {"hf": str(where), "seq_length": LENGTH, "max_part_bytes": part_bytes},
        "data": {"train": [str(tokens)], "format": "npy", "shuffle": "none", "mask_token": MASK},
        "run": {"dir": str(run), "steps": STEPS, "commit_every": 0},
        "device": {"backend": "cpu"},
        "tiers": {"place": {kind: "device" for kind in ("params", "grads", "optimizer")}},
        "train_micro_batch_size_per_gpu": SEQUENCES, "gradient_clipping": 0.0,
        "bf16": {"enabled": dtype == "bf16"},
        "optimizer": {"type": "AdamW", "params": {"lr": RATE, "eps": EPSILON, "weight_decay": 0.0}},
    }
    path = scratch / "job.json"
    path.write_text(json.dumps(job))
    done = subprocess.run([sluice, "train", str(path), "--quiet"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"sluice train gave {done.returncode}: {done.stderr}")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [(row["loss"], row["grad_norm"]) for row in rows if "loss" in row]


def worst(ours, theirs, column):
    assert len(ours) == len(theirs) > 0
    return max(abs(a[column] / b[column] - 1) for a, b in zip(ours, theirs))


def check(sluice, name, scratch):
    where = scratch / "hf"
    make_checkpoint(FAMILIES[name], where)
    ids = np.random.default_rng(5).integers(0, VOCAB, TOKENS).astype("<u2")
    np.save(scratch / "joined.npy", ids)
    np.save(scratch / "documents.npy", ids.reshape(-1, DOCUMENT))
    good = True
    for data, document, part_bytes in (("joined", TOKENS, 0), ("joined", TOKENS, 20000), ("documents", DOCUMENT, 0),
                                       ("documents", DOCUMENT, 20000)):
        is_masked = FAMILIES[name].model_type == "bert"
        rows = [rows_of(ids.astype("int64"), document, is_masked, step) for step in range(STEPS)]
        exact = torch_steps(where, rows, torch.float32)
        rounded = torch_steps(where, rows, torch.bfloat16)
        fp32 = our_steps(sluice, where, scratch / f"{data}.npy", scratch, "fp32", part_bytes)
        bf16 = our_steps(sluice, where, scratch / f"{data}.npy", scratch, "bf16", part_bytes)
        loss, norm = worst(fp32, exact, 0), worst(fp32, exact, 1)
        half = abs(bf16[0][0] - rounded[0][0])
        passed = loss < LOSS_FP32 and norm < NORM_FP32 and half < LOSS_BF16
        print(f"{name:13} {data} {'parts' if part_bytes else 'whole'}: {exact[0][0]:.5f} -> {exact[-1][0]:.5f}; "
              f"fp32 loss {loss:.1e}, gradient {norm:.1e}; bf16 loss {half:.1e}"
              f"{'' if passed else '   FAILED'}", flush=True)
        good = good and passed
    return good


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    results = []
    for name in sys.argv[2:] or FAMILIES:
        with tempfile.TemporaryDirectory() as scratch:
            results.append(check(sys.argv[1], name, pathlib.Path(scratch)))
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
