#!/usr/bin/env python3
"""Makes loss_scale.json: the scales that DeepSpeed's and PyTorch's own scalers give for the same
sequences of overflows.

Needs numpy, torch (CPU) and deepspeed/runtime/fp16/loss_scaler.py of DeepSpeed up to 0.16 (that of
0.14.0 made the committed file), which is loaded without the rest of DeepSpeed. Versions from 0.18 on
double the scale one step later than PyTorch does.
Usage: python3 make_loss_scale.py LOSS_SCALER_PY [TARGET_DIR]
Which step overflows is not stored: both sides draw it from the generator of src/base/rng.h.
"""

import importlib.util
import json
import logging
import pathlib
import sys
import types

import torch

from make_fixtures import rng_below

STEPS = 2000
STREAM_OVERFLOW, STREAM_RATE = 0x6F766572666C6F77, 0x72617465
BLOCK = 100  # steps of one rate

# power, window, hysteresis, consecutive, minimum, overflows per 1000 steps (one is drawn per block)
DEEPSPEED = [
    (16, 1000, 2, False, 1, [0, 1, 2, 3]),
    (16, 1000, 1, False, 1, [0, 1, 2, 3]),
    (32, 50, 2, False, 1, [0, 10, 30, 100]),
    (60, 50, 2, True, 1, [0, 10, 30, 200]),
    (20, 8, 1, False, 1, [0, 50, 80, 110]),
    (60, 8, 3, False, 1, [0, 50, 100, 200]),
    (20, 8, 3, True, 1, [100, 300, 500, 600]),
    (60, 1, 4, False, 1, [300, 500, 600, 700]),
    (60, 2, 4, True, 1, [300, 500, 600, 700]),
    (10, 3, 2, False, 3, [0, 100, 400, 500]),  # meets a minimum that is no power of two
    (1, 20, 2, False, 5, [0, 20, 50]),         # begins below the minimum
    (4, 200, 2, False, 1, [20, 50, 300]),
    (0, 7, 1, False, 1, [0, 0, 1, 300]),
]
# power, window, rates
PYTORCH = [
    (16, 2000, [0, 1, 2, 3]),
    (16, 100, [0, 5, 10, 20]),
    (24, 8, [0, 50, 100, 150]),
    (40, 3, [100, 200, 250]),
    (20, 13, [0, 0, 60, 150]),
]


def load_deepspeed(path):
    """The module loss_scaler.py, with stand-ins for what it imports: a rank of 0 and a silent log."""
    package, comm, utils = (types.ModuleType(f"deepspeed{end}") for end in ("", ".comm", ".utils"))
    comm.get_rank = lambda: 0
    utils.logger = logging.getLogger("silent")
    utils.logger.setLevel(logging.ERROR)
    package.comm, package.utils = comm, utils
    sys.modules.update({"deepspeed": package, "deepspeed.comm": comm, "deepspeed.utils": utils})
    spec = importlib.util.spec_from_file_location("loss_scaler", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def overflows(seed, step, rates):
    rate = rates[rng_below(seed, STREAM_RATE, step // BLOCK, len(rates))]
    return rng_below(seed, STREAM_OVERFLOW, step, 1000) < rate


def record(case, scale, update):
    """Adds to the case the steps (from 0) after which the scale is another, and where it stops."""
    changes, last, stopped = [], scale(), None
    for step in range(STEPS):
        try:
            update(overflows(case["seed"], step, case["rates"]))
        except Exception as error:
            assert "already at minimum" in str(error)
            stopped = step
            break
        if scale() != last:
            last = scale()
            changes.append([step, last])
    case["changes"], case["stopped_at"] = changes, stopped
    text = f"stopped at {stopped}" if stopped is not None else f"ends with {last:g}"
    print(f"{case['name']}: {len(changes)} changes, {text}")
    return case


def deepspeed_case(loss_scaler, number, power, window, hysteresis, consecutive, minimum, rates):
    scaler = loss_scaler.DynamicLossScaler(init_scale=2**power, scale_window=window,
                                           min_scale=minimum, delayed_shift=hysteresis,
                                           consecutive_hysteresis=consecutive)
    case = {"name": f"deepspeed {number}", "seed": 100 + number, "power": power, "window": window,
            "hysteresis": hysteresis, "consecutive": consecutive, "minimum": minimum, "rates": rates}
    return record(case, lambda: float(scaler.cur_scale), scaler.update_scale)


def pytorch_case(number, power, window, rates):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**power, growth_interval=window)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler.scale(torch.zeros(1))  # makes its tensors

    def update(overflow):
        weight.grad = torch.full((1,), float("inf") if overflow else 1.0)
        scaler.step(optimizer)
        scaler.update()

    case = {"name": f"pytorch {number}", "seed": 200 + number, "power": power, "window": window,
            "hysteresis": 1, "consecutive": False, "minimum": 2.0**-126, "rates": rates}
    return record(case, scaler.get_scale, update)


def main():
    loss_scaler = load_deepspeed(sys.argv[1])
    target = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else pathlib.Path(__file__).parent)
    cases = [deepspeed_case(loss_scaler, i, *settings) for i, settings in enumerate(DEEPSPEED)]
    cases += [pytorch_case(i, *settings) for i, settings in enumerate(PYTORCH)]
    head = {"format": 1, "made_by": f"deepspeed 0.14.0, torch {torch.__version__}",
            "steps": STEPS, "block": BLOCK}
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    text = json.dumps(head)[:-1] + ', "cases": [\n' + lines + "\n]}\n"
    (target / "loss_scale.json").write_text(text)


if __name__ == "__main__":
    main()
