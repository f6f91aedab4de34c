#!/usr/bin/env python3
"""Compares adapters with those of PEFT: python3 check_peft.py SLUICE [FAMILY...]

Needs torch (CPU), transformers, peft, safetensors. For each family a tiny random checkpoint is made; Sluice
trains adapters of it in fp32, and

  - the adapters that it exports load with PeftModel.from_pretrained and give its own loss on a text;
  - the merged model that it exports loads with transformers alone and gives that loss, too;
  - PEFT, with Sluice's initial adapters, gives the same losses step by step on windows of a text.

The families named after a format (llama-nf4) have a base that is packed, by state.params here and by bitsandbytes there,
which they need too; smollm2-nf4_double has the shape of SmolLM2-135M. gpt_oss-mxfp4-saved begins with a checkpoint whose
experts Sluice has packed as gpt-oss is published, and which transformers expands. The merged model is Sluice's expanded base with the
adapters added. With "-saved" the base is a checkpoint that bitsandbytes has packed, whose codes and scales both take. The
merged model quantized again (export --quantized) loads with transformers and bitsandbytes, which give the loss that Sluice
gives for it.

Prints the differences; exit status 1 if one is above its bound."""

import json
import math
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from peft import PeftModel
from torch.nn import functional

SEQ, STEPS, LR, CLIPPING = 32, 20, 0.02, 1.0
BOUND_LOSS, BOUND_CURVE = 1e-5, 1e-4
RATES = {"smollm2-nf4_double": 2e-4}  # the others have LR
failed = False

FAMILIES = {
    "llama": (
        lambda: transformers.LlamaConfig(
            vocab_size=256, hidden_size=64, intermediate_size=112, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
            tie_word_embeddings=False, initializer_range=0.15),
        {"rank": 6, "alpha": 15,
         "targets": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}),
    "llama-qv": (
        lambda: transformers.LlamaConfig(
            vocab_size=256, hidden_size=64, intermediate_size=112, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=128,
            tie_word_embeddings=True, initializer_range=0.15),
        {}),
    "gpt2": (
        lambda: transformers.GPT2Config(
            vocab_size=256, n_embd=64, n_layer=2, n_head=4, n_positions=128, initializer_range=0.15,
            resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
        {"rank": 4, "alpha": 4, "targets": ["c_attn", "c_proj", "c_fc"]}),
    "gpt_neox": (
        lambda: transformers.GPTNeoXConfig(
            vocab_size=256, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=128, initializer_range=0.15, bos_token_id=None, eos_token_id=None),
        {"rank": 4, "alpha": 12, "targets": ["query_key_value", "dense", "dense_4h_to_h"]}),
    "mixtral": (
        lambda: transformers.MixtralConfig(
            vocab_size=256, hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, num_local_experts=5, num_experts_per_tok=2,
            initializer_range=0.15),
        {"rank": 4, "alpha": 12, "targets": ["q_proj", "experts.gate_up_proj", "experts.down_proj"]}),
    "gpt_oss": (
        lambda: transformers.GptOssConfig(
            vocab_size=256, hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, max_position_embeddings=128, num_local_experts=5,
            num_experts_per_tok=2, sliding_window=20, initializer_range=0.15, pad_token_id=None,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        {"rank": 3, "alpha": 12, "targets": ["experts.gate_up_proj", "experts.down_proj"]}),
    "qwen3_moe-down": (
        lambda: transformers.Qwen3MoeConfig(
            vocab_size=256, hidden_size=64, intermediate_size=48, moe_intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=128, num_experts=5,
            num_experts_per_tok=2, norm_topk_prob=True, initializer_range=0.15),
        {"rank": 4, "alpha": 4, "targets": ["mlp.experts.down_proj"]}),
    "qwen2_moe-shared": (
        lambda: transformers.Qwen2MoeConfig(
            vocab_size=256, hidden_size=64, intermediate_size=48, moe_intermediate_size=48,
            shared_expert_intermediate_size=56, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=128, num_experts=5, num_experts_per_tok=2, initializer_range=0.15),
        {"rank": 4, "alpha": 12, "targets": ["q_proj", "shared_expert.gate_proj", "shared_expert.up_proj",
                                             "shared_expert.down_proj"]}),
    "deepseek_v3-shared": (
        lambda: transformers.DeepseekV3Config(
            vocab_size=256, hidden_size=64, intermediate_size=80, moe_intermediate_size=48, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=24, q_lora_rank=28, qk_nope_head_dim=16,
            qk_rope_head_dim=8, v_head_dim=12, first_k_dense_replace=1, n_routed_experts=8, num_experts_per_tok=3,
            n_group=4, topk_group=2, n_shared_experts=1, max_position_embeddings=128, initializer_range=0.15,
            pad_token_id=None, bos_token_id=None, eos_token_id=None),
        {"rank": 4, "alpha": 12, "targets": ["q_b_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
                                             "shared_experts.gate_proj", "shared_experts.up_proj",
                                             "shared_experts.down_proj"]}),
    "glm4_moe-shared": (
        lambda: transformers.Glm4MoeConfig(
            vocab_size=256, hidden_size=64, intermediate_size=80, moe_intermediate_size=48, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, first_k_dense_replace=1, n_routed_experts=8,
            num_experts_per_tok=3, n_shared_experts=1, use_qk_norm=True, max_position_embeddings=128,
            initializer_range=0.15, pad_token_id=None, bos_token_id=None, eos_token_id=None),
        {"rank": 4, "alpha": 12, "targets": ["mlp.up_proj", "shared_experts.up_proj", "shared_experts.down_proj"]}),
    "gpt2-one": (
        lambda: transformers.GPT2Config(
            vocab_size=256, n_embd=64, n_layer=2, n_head=4, n_positions=128, initializer_range=0.15,
            resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
        {"rank": 8, "alpha": 32, "targets": ["mlp.c_proj"]}),
}


# A packed base: state.params, the configuration of bitsandbytes, and whether the checkpoint is packed.
PACKED = {f"llama-{name}{saved}": (name, {"bnb_4bit_quant_type": name.split("_")[0],
                                          "bnb_4bit_use_double_quant": name.endswith("_double")}, saved)
          for name in ("nf4", "nf4_double", "fp4", "fp4_double") for saved in ("", "-saved")}
# Rows of whole blocks of 64: bitsandbytes 0.50 expands others wrongly on a CPU with AVX-512.
FAMILIES.update({family: (
    lambda: transformers.LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False, initializer_range=0.15),
    FAMILIES["llama"][1]) for family in PACKED})
# The shape of SmolLM2-135M with random weights. At the rate of the others it learns the one line of the curve by heart
# within a few steps, after which both curves are noise.
PACKED["smollm2-nf4_double"] = PACKED["llama-nf4_double"]
FAMILIES["smollm2-nf4_double"] = (
    lambda: transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rope_theta=100000.0, tie_word_embeddings=True,
        initializer_range=0.041666666666666664),
    {"rank": 8, "alpha": 16, "targets": FAMILIES["llama"][1]["targets"]})
# Experts in mxfp4 want rows of whole groups of 32. Sluice packs the checkpoint.
PACKED["gpt_oss-mxfp4-saved"] = ("mxfp4", None, "-saved")
FAMILIES["gpt_oss-mxfp4-saved"] = (
    lambda: transformers.GptOssConfig(**FAMILIES["gpt_oss"][0]().to_dict() | {"intermediate_size": 96}),
    {"rank": 3, "alpha": 12, "targets": ["q_proj", "experts.gate_up_proj", "experts.down_proj"]})


def load(checkpoint, family):
    packing = {"device_map": "cpu"}
    if family in PACKED and "quantization_config" not in json.loads((checkpoint / "config.json").read_text()):
        packing = {"device_map": "cpu", "quantization_config": transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32, **PACKED[family][1])}
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, **packing)
    for module in model.modules():  # its fused product without gradients computes in bf16
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model


def sluice(*arguments):
    done = subprocess.run([SLUICE, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"sluice {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def state_of(family):
    """Formats that the checkpoint does not say."""
    if family in PACKED and PACKED[family][2]:
        return {}
    return {"params": PACKED[family][0] if family in PACKED else "working"}


def train(folder, name, checkpoint, text, lora, steps, rate, family, state=None):
    job = {
        "model": {"hf": str(checkpoint), "seq_length": SEQ},
        "data": {"train": [str(text)], "tokenizer": "bytes"},
        "run": {"dir": str(folder / name), "steps": steps},
        "train": {"lora": lora},
        "state": state or state_of(family),
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": CLIPPING,
        "optimizer": {"type": "AdamW", "params": {"lr": rate, "betas": [0.9, 0.99], "eps": 1e-8,
                                                  "weight_decay": 0.01}},
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(job))
    sluice("train", path, "--quiet")
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines if '"step"' in line and '"loss"' in line]


def loss_on(model, tokens):
    """Mean loss of every token but the first, in windows of SEQ."""
    total = 0.0
    with torch.no_grad():
        for at in range(0, len(tokens) - 1, SEQ):
            window = tokens[at:at + SEQ + 1]
            logits = model(window[:-1].unsqueeze(0)).logits[0]
            total += functional.cross_entropy(logits, window[1:], reduction="sum").item()
    return total / (len(tokens) - 1)


def check(family, what, found, expected, bound):
    global failed
    difference = abs(found - expected)
    failed |= not difference <= bound
    print(f"{family:10} {what:34} {found:.7f} {expected:.7f}  {difference:.1e} (at most {bound:.0e})")


def check_family(family, folder):
    make_config, lora = FAMILIES[family]
    rate = RATES.get(family, LR)
    torch.manual_seed(1)
    base = folder / "base"
    transformers.AutoModelForCausalLM.from_config(make_config()).save_pretrained(base)
    words = pathlib.Path(__file__).read_bytes()
    text, one = folder / "text.txt", folder / "one.txt"
    text.write_bytes(words[:2000])
    one.write_bytes(words[:SEQ + 2])
    if family in PACKED and PACKED[family][0] == "mxfp4":
        train(folder, "pack", base, text, {"targets": "q_proj"}, 1, 0, family, {"params": "mxfp4"})
        sluice("export", folder / "pack", folder / "packed", "--quantized")
        base = folder / "packed"
    elif family in PACKED and PACKED[family][2]:
        load(base, family).save_pretrained(folder / "packed")
        base = folder / "packed"

    train(folder, "run", base, text, lora, STEPS, rate, family)
    sluice("export", folder / "run", folder / "adapters", "--adapters")
    sluice("export", folder / "run", folder / "merged")
    ours = json.loads(sluice("eval", folder / "run", text, "--json"))["loss"]
    tokens = torch.tensor(list(text.read_bytes()))

    before = loss_on(load(base, family), tokens)
    peft = PeftModel.from_pretrained(load(base, family), folder / "adapters")
    check(family, "PEFT's loss with our adapters", loss_on(peft, tokens), ours, BOUND_LOSS)
    merged = transformers.AutoModelForCausalLM.from_pretrained(folder / "merged")
    check(family, "transformers' of the merged model", loss_on(merged, tokens), ours, BOUND_LOSS)
    if family in PACKED:
        sluice("export", folder / "run", folder / "again", "--quantized")
        train(folder, "back", folder / "again", text, lora, 1, 0, family)
        found = json.loads(sluice("eval", folder / "back", text, "--json"))["loss"]
        check(family, "transformers' of that quantized again", loss_on(load(folder / "again", family), tokens), found,
              BOUND_LOSS)
        print(f"{family:10} {'perplexity of that, to the run':34} {math.exp(found - ours) - 1:+.2%}")
    print(f"{family:10} {'loss before and after training':34} {before:.4f} {ours:.4f}")

    curve = train(folder, "curve", base, one, lora, STEPS, rate, family)
    train(folder, "begin", base, one, lora, 1, 0, family)
    sluice("export", folder / "begin", folder / "first", "--adapters")
    peft = PeftModel.from_pretrained(load(base, family), folder / "first", is_trainable=True)
    optimizer = torch.optim.AdamW([p for p in peft.parameters() if p.requires_grad], lr=rate,
                                  betas=(0.9, 0.99), eps=1e-8, weight_decay=0.01)
    words = torch.tensor(list(one.read_bytes()))
    worst = (-1.0, 0.0, 0.0)
    windows = [words[:-1], words[1:]]  # the text has room for no others; which one is drawn, the loss says
    for step in range(STEPS):
        losses = [functional.cross_entropy(peft(w[:-1].unsqueeze(0)).logits[0], w[1:])
                  for w in windows]
        loss = min(losses, key=lambda found: abs(found.item() - curve[step]))
        if step in (0, 1, STEPS - 1):
            check(family, f"PEFT's loss at step {step + 1}", loss.item(), curve[step], BOUND_CURVE)
        worst = max(worst, (abs(loss.item() - curve[step]), loss.item(), curve[step]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(peft.parameters(), CLIPPING)
        optimizer.step()
    check(family, f"PEFT's loss, worst of {STEPS} steps", *worst[1:], BOUND_CURVE)


SLUICE = sys.argv[1]
for name in sys.argv[2:] or FAMILIES:
    with tempfile.TemporaryDirectory(prefix="sluice-peft-") as place:
        check_family(name, pathlib.Path(place))
sys.exit(1 if failed else 0)
