#!/usr/bin/env python3
"""Makes rows.json: results of PyTorch's and transformers' own operations, to compare the row ops with.

Needs torch (CPU), numpy and transformers 5. Usage: python3 make_rows.py [TARGET_DIR]
README.md describes the file. Operands are not stored: both sides draw them from src/base/rng.h.
"""

import json
import pathlib
import sys
import types

import torch
import transformers
from torch.nn import functional
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.glm4.modeling_glm4 import apply_rotary_pos_emb
from transformers.models.gpt_oss.modeling_gpt_oss import (GptOssExperts, GptOssTopKRouter,
                                                          eager_attention_forward)
from transformers.models.mixtral.modeling_mixtral import (MixtralExperts, MixtralTopKRouter,
                                                          load_balancing_loss_func)
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeTopKRouter
from transformers.models.switch_transformers.modeling_switch_transformers import router_z_loss_func
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from make_fixtures import rng_normal

SEED = 20262
ROWS, WIDTH, HEADS, PAIRS, POSITION = 3, 8, 2, 8, 700
CHOICES, EXPERTS, FEATURES = 3, 4, 5  # of a router; of the mixtures below, which choose 2


def draw(stream, *shape):
    count = 1
    for size in shape:
        count *= size
    return torch.from_numpy(rng_normal(SEED, stream, count)).reshape(shape).requires_grad_()


def numbers(tensor):
    return [float(f"{x:.9g}") for x in tensor.detach().flatten().tolist()]


def result(y, dy, **inputs):
    """y and the gradients of sum(y * dy) by the inputs."""
    grads = torch.autograd.grad((y * dy).sum(), list(inputs.values()))
    return {"y": numbers(y), **{f"d{name}": numbers(grad) for name, grad in zip(inputs, grads)}}


def activations():
    tanh_gelu = lambda x: functional.gelu(x, approximate="tanh")
    results, limit = {}, 1.25
    clamped = lambda x: x.clamp(max=limit) * torch.sigmoid(1.702 * x.clamp(max=limit))  # gpt-oss's
    functions = {"gelu": tanh_gelu, "swiglu": functional.silu, "gelu_erf": functional.gelu,
                 "relu": functional.relu, "geglu": tanh_gelu, "geglu_erf": functional.gelu,
                 "swiglu_clamped": clamped}
    for name, function in functions.items():
        is_gated = name not in ("gelu", "gelu_erf", "relu")
        x, dy = draw(1, ROWS, 2 * WIDTH if is_gated else WIDTH), draw(2, ROWS, WIDTH)
        up = x[:, WIDTH:].clamp(-limit, limit) + 1 if function is clamped else x[:, WIDTH:]
        y = function(x[:, :WIDTH]) * up if is_gated else function(x)
        results[name] = result(y, dy, x=x)
    return results


def norms():
    """gemma: RMS with 1 + weight; cohere: no bias; olmo: no parameters. heads: Cohere's of [H, D]."""
    results = {}
    for name in ("gemma", "cohere", "olmo", "heads"):
        shape = (HEADS, WIDTH) if name == "heads" else (WIDTH,)
        x, weight, dy = draw(1, ROWS, *shape), draw(2, *shape), draw(3, ROWS, *shape)
        if name == "olmo":
            results[name] = result(functional.layer_norm(x, shape, None, None, 1e-5), dy, x=x)
            continue
        norm = (GemmaRMSNorm if name == "gemma" else CohereLayerNorm)(shape if name == "heads" else WIDTH, 1e-5)
        norm.weight = torch.nn.Parameter(weight.detach())
        results[name] = result(norm(x), dy, x=x, weight=norm.weight)
    return results


def losses():
    results = {}
    targets = torch.tensor([1, 7, 0])
    for name, scale, cap in (("scaled", 0.25, 0.0), ("capped", 1.0, 3.0), ("both", 0.5, 2.0)):
        logits = draw(1, ROWS, WIDTH)
        x = 4 * logits * scale
        z = torch.tanh(x / cap) * cap if cap else x
        loss = functional.cross_entropy(z, targets, reduction="none")
        results[name] = {"scale": scale, "cap": cap, **result(loss, torch.ones(ROWS), x=logits)}
    return results


ROUTERS = {  # class and settings; each chooses CHOICES of WIDTH experts
    "mixtral": (MixtralTopKRouter, {}),
    "qwen2_moe": (Qwen2MoeTopKRouter, {"norm_topk_prob": False}),
    "gpt_oss": (GptOssTopKRouter, {}),
    "deepseek_v2": (DeepseekV2TopkRouter, {"topk_method": "group_limited_greedy", "routed_scaling_factor": 1.5,
                                           "n_group": 4, "topk_group": 2}),
    "deepseek_v3": (DeepseekV3TopkRouter, {"norm_topk_prob": True, "routed_scaling_factor": 2.5, "n_group": 4,
                                           "topk_group": 2}),
    "deepseek_v3_plain": (DeepseekV3TopkRouter, {"norm_topk_prob": False, "routed_scaling_factor": 2.5, "n_group": 1,
                                                 "topk_group": 1}),
}


def routers():
    """Choices of a row in ascending order. The router's own weight is the identity: its input are the logits."""
    results = {}
    for name, (router_class, settings) in ROUTERS.items():
        router = router_class(types.SimpleNamespace(num_experts_per_tok=CHOICES, num_experts=WIDTH,
                                                    num_local_experts=WIDTH, hidden_size=WIDTH, **settings))
        router.weight = torch.nn.Parameter(torch.eye(WIDTH))
        if hasattr(router, "e_score_correction_bias"):
            router.e_score_correction_bias = 0.5 * draw(3, WIDTH).detach()
        x, dweights = draw(1, ROWS, WIDTH), draw(2, ROWS, CHOICES)
        _, weights, chosen = router(x)
        chosen, order = chosen.sort(-1)
        results[name] = {"chosen": chosen.flatten().tolist(), **result(weights.gather(1, order), dweights, x=x)}
    # The losses of two layers together, with 2 choices.
    x1, x2 = draw(1, ROWS, WIDTH), draw(2, ROWS, WIDTH)
    results["balance"] = result(load_balancing_loss_func((x1, x2), WIDTH, 2), torch.tensor(1.0), x1=x1, x2=x2)
    results["z"] = result(router_z_loss_func(torch.cat([x1, x2])[None]), torch.tensor(1.0), x1=x1, x2=x2)
    return results


def experts():
    """Whole mixtures: 2 of 4 experts, whose matrices are [out, in] and whose gates come before the ups."""
    results = {}
    index = torch.tensor([[1, 3], [0, 1], [1, 3]])  # all rows choose expert 1, and none expert 2
    config = types.SimpleNamespace(num_local_experts=EXPERTS, hidden_size=WIDTH, intermediate_size=FEATURES,
                                   hidden_act="silu", swiglu_alpha=1.702, swiglu_limit=1.25,
                                   _experts_implementation="eager")
    for name, experts_class in (("mixtral", MixtralExperts), ("gpt_oss", GptOssExperts)):
        x, weights, dy = draw(1, ROWS, WIDTH), draw(2, ROWS, 2), draw(3, ROWS, WIDTH)
        up, down = draw(4, EXPERTS, 2 * FEATURES, WIDTH), draw(5, EXPERTS, WIDTH, FEATURES)
        up_bias, down_bias = draw(6, EXPERTS, 2 * FEATURES), draw(7, EXPERTS, WIDTH)
        module = experts_class(config)
        names = ["gate_up_proj", "down_proj"] + (["gate_up_proj_bias", "down_proj_bias"] if name == "gpt_oss" else [])
        for parameter in names:
            delattr(module, parameter)
        if name == "gpt_oss":  # its matrices are [in, out], gates and ups in turn
            in_turn = torch.stack([torch.arange(FEATURES), FEATURES + torch.arange(FEATURES)], 1).flatten()
            module.gate_up_proj, module.down_proj = up[:, in_turn].transpose(1, 2), down.transpose(1, 2)
            module.gate_up_proj_bias, module.down_proj_bias = up_bias[:, in_turn], down_bias
        else:
            module.gate_up_proj, module.down_proj = up, down
        results[name] = result(module(x, index, weights), dy, x=x, weights=weights)
    return results


def sinks():
    """gpt-oss's attention of 4 heads in 2 groups over 5 tokens, which see 2 positions each."""
    q, k, v = (draw(i, 1, heads, 5, WIDTH) for i, heads in ((1, 4), (2, 2), (3, 2)))
    dy, s = draw(4, 1, 5, 4, WIDTH), draw(5, 4)
    module = types.SimpleNamespace(sinks=s, num_key_value_groups=2, training=False)
    distance = torch.arange(5)[:, None] - torch.arange(5)
    mask = torch.where((distance >= 0) & (distance < 2), 0.0, -torch.inf)
    y, _ = eager_attention_forward(module, q, k, v, mask, WIDTH ** -0.5)
    return {"gpt_oss": result(y, dy, q=q, k=k, v=v, s=s)}


class Config:
    """What the functions of modeling_rope_utils read of a configuration."""

    def __init__(self, parameters, positions):
        self.head_dim = 2 * PAIRS
        self.hidden_size, self.num_attention_heads = self.head_dim, 1
        self.max_position_embeddings = positions
        self.rope_parameters = {"rope_theta": 10000.0, "original_max_position_embeddings": positions, **parameters}

    def standardize_rope_params(self):
        pass


def ropes():
    """Cosines and sines of one position, whose angle is computed in double from fp32 frequencies."""
    short, long = [1 + 0.25 * i for i in range(PAIRS)], [3 + 0.5 * i for i in range(PAIRS)]
    lists = {"short_factor": short, "long_factor": long, "factor": 4.0}
    cases = {
        "dynamic": ("dynamic", {"factor": 4.0}, 256),
        "dynamic_short": ("dynamic", {"factor": 4.0}, 2048),
        "yarn": ("yarn", {"factor": 8.0}, 512),
        "yarn_given": ("yarn", {"factor": 8.0, "beta_fast": 20.0, "beta_slow": 2.0, "mscale": 0.7,
                                "mscale_all_dim": 1.2, "truncate": False}, 512),
        "longrope": ("longrope", lists, 512),
        "longrope_short": ("longrope", lists, 2048),
    }
    results = {}
    for name, (kind, parameters, positions) in cases.items():
        frequencies, factor = ROPE_INIT_FUNCTIONS[kind](Config(parameters, positions), "cpu", seq_len=POSITION + 1)
        angles = frequencies.double() * POSITION
        table = torch.stack([angles.cos() * factor, angles.sin() * factor], -1)
        results[name] = {"scaling": kind, "positions": positions, "table": numbers(table)}
    # GLM 4's own rotation: the first half of a head, in pairs that lie side by side.
    x = draw(1, 1, HEADS, 1, 4 * PAIRS)
    angles = (10000.0 ** (-torch.arange(PAIRS, dtype=torch.float64) / PAIRS) * POSITION).repeat(2)
    y, _ = apply_rotary_pos_emb(x, x, angles.cos().float()[None, None], angles.sin().float()[None, None])
    results["glm4"] = {"y": numbers(y)}
    return results


def main():
    target = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    document = {
        "format": 1,
        "made_by": f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}",
        "seed": SEED, "rows": ROWS, "width": WIDTH, "heads": HEADS, "pairs": PAIRS, "position": POSITION,
        "activations": activations(), "norms": norms(), "losses": losses(), "ropes": ropes(),
        "routers": routers(), "experts": experts(), "sinks": sinks(),
    }
    lines = []  # one for each case
    for key, value in document.items():
        if isinstance(value, dict):
            cases = ",\n".join(f"  {json.dumps(name)}: {json.dumps(case)}" for name, case in value.items())
            lines.append(f" {json.dumps(key)}: {{\n{cases}\n }}")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    (target / "rows.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
