#!/usr/bin/env python3
"""Makes lr_schedules.json: the learning rates and momenta that DeepSpeed's own schedulers give.

Needs torch (CPU) and an unpacked source distribution of DeepSpeed, as `pip download --no-deps
deepspeed` brings it; DeepSpeed itself is not installed. Usage:

    python3 make_lr_schedules.py SOURCE_DIR [TARGET_DIR]

The classes of deepspeed/runtime/lr_schedules.py are driven with a torch optimizer in the order of
DeepSpeed's engine: made once, then for each update optimizer.step() and scheduler.step(). What is
noted for update s is what the optimizer held when that update ran. README.md describes the file.
"""

import importlib.util
import json
import logging
import math
import pathlib
import sys
import types

import torch

STEPS = 2000
DIGITS = 12
ORDER = 3  # of the differences that are stored

ADAM = {"type": "AdamW", "params": {"lr": 2e-3, "betas": [0.85, 0.98]}}
CASES = [
    ("WarmupLR", {}),
    ("WarmupLR", {"warmup_min_lr": 1e-4, "warmup_max_lr": 5e-3, "warmup_num_steps": 7,
                  "warmup_type": "linear"}),
    ("WarmupLR", {"warmup_num_steps": 1}),
    ("WarmupLR", {"warmup_min_lr": 1e-3, "warmup_max_lr": 1e-5, "warmup_num_steps": 1500,
                  "warmup_type": "linear"}),
    ("WarmupDecayLR", {"total_num_steps": 2000, "warmup_num_steps": 100}),
    ("WarmupDecayLR", {"total_num_steps": 1500, "warmup_num_steps": 300, "warmup_min_lr": 1e-5,
                       "warmup_max_lr": 4e-3, "warmup_type": "linear"}),
    ("WarmupDecayLR", {"total_num_steps": 20, "warmup_num_steps": 30, "warmup_type": "linear"}),
    ("WarmupDecayLR", {"total_num_steps": 1000, "warmup_num_steps": 1, "warmup_max_lr": None}),
    ("WarmupCosineLR", {"total_num_steps": 2000, "warmup_num_steps": 200}),
    ("WarmupCosineLR", {"total_num_steps": 1200, "warmup_num_steps": 50, "warmup_min_ratio": 0.1,
                        "cos_min_ratio": 0.25, "warmup_type": "linear"}),
    ("WarmupCosineLR", {"total_num_steps": 4, "warmup_num_steps": 8}),
    ("WarmupCosineLR", {"total_num_steps": 1900}),
    ("OneCycle", {"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-2}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 3e-3, "cycle_first_step_size": 400,
                  "cycle_second_step_size": 600, "decay_lr_rate": 0.5, "decay_step_size": 100,
                  "cycle_min_mom": 0.7, "cycle_max_mom": 0.95, "decay_mom_rate": 0.001}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 300,
                  "cycle_second_step_size": 451, "cycle_first_stair_count": 7,
                  "cycle_second_stair_count": 3, "decay_step_size": 50}),
    ("OneCycle", {"cycle_min_lr": 1e-3, "cycle_max_lr": 5e-3, "cycle_first_step_size": 500,
                  "cycle_first_stair_count": 10, "cycle_momentum": False, "decay_lr_rate": 1.0}),
    ("OneCycle", {"cycle_min_lr": 1e-3, "cycle_max_lr": 2e-3, "cycle_first_step_size": 700,
                  "cycle_second_step_size": 0, "decay_lr_rate": 0.1, "decay_step_size": 3}),
    ("LRRangeTest", {}),
    ("LRRangeTest", {"lr_range_test_min_lr": 1e-5, "lr_range_test_step_size": 100,
                     "lr_range_test_step_rate": 5.0, "lr_range_test_staircase": True}),
    ("LRRangeTest", {"lr_range_test_min_lr": 3e-6, "lr_range_test_step_size": 333,
                     "lr_range_test_step_rate": 0.7}),
]


def load_schedules(source):
    """The module, with nothing of DeepSpeed around it but a logger."""
    package, utils = types.ModuleType("deepspeed"), types.ModuleType("deepspeed.utils")
    utils.logger = logging.getLogger("deepspeed")
    utils.logger.setLevel(logging.ERROR)
    sys.modules.update({"deepspeed": package, "deepspeed.utils": utils})
    path = source / "deepspeed" / "runtime" / "lr_schedules.py"
    spec = importlib.util.spec_from_file_location("lr_schedules", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(module, name, params):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight], **ADAM["params"])
    scheduler = getattr(module, name)(optimizer, **params)
    rates, betas = [], []
    for _ in range(STEPS):
        group = optimizer.param_groups[0]
        rates.append(float(group["lr"]))
        betas.append(tuple(group["betas"]))
        weight.grad = torch.zeros(1)
        optimizer.step()
        scheduler.step()
    return rates, betas


def pack(values):
    """Values in a unit of twelve digits of the largest: differences of third order, repeats as n*k."""
    unit = 10.0 ** (math.floor(math.log10(max(values))) - DIGITS + 1)
    numbers = [round(value / unit) for value in values]
    for _ in range(ORDER):
        numbers = [b - a for a, b in zip([0] + numbers[:-1], numbers)]
    words, at = [], 0
    while at < len(numbers):
        count = 1
        while at + count < len(numbers) and numbers[at + count] == numbers[at]:
            count += 1
        words.append(f"{numbers[at]}*{count}" if count > 1 else f"{numbers[at]}")
        at += count
    return {"unit": float(f"{unit:.1e}"), "differences": " ".join(words)}


def main():
    source = pathlib.Path(sys.argv[1])
    target = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else pathlib.Path(__file__).parent)
    module = load_schedules(source)
    cases = []
    for name, params in CASES:
        rates, betas = run(module, name, params)
        case = {"optimizer": ADAM, "scheduler": {"type": name, "params": params},
                "learning_rates": pack(rates)}
        if any(pair != tuple(ADAM["params"]["betas"]) for pair in betas):
            case["momenta"] = pack([pair[0] for pair in betas])
            (case["beta2"],) = {pair[1] for pair in betas}
        cases.append(case)
    version = (source / "version.txt").read_text().strip()
    head = {"format": 1, "made_by": f"deepspeed {version}, torch {torch.__version__}",
            "steps": STEPS, "order": ORDER}
    text = json.dumps(head)[:-1] + ', "cases": [\n' + ",\n".join(map(json.dumps, cases)) + "\n]}\n"
    (target / "lr_schedules.json").write_text(text)
    print(f"lr_schedules.json: {len(cases)} cases, {len(text)} bytes")


if __name__ == "__main__":
    main()
