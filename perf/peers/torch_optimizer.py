#!/usr/bin/env python3
"""One optimizer's side of perf/peers/compare.py optimizer: one step for each line that it reads.

    perf/peers/torch_optimizer.py sluice|sluice-nvme|fused|deepspeed|torchao COUNT FOLDER

COUNT fp32 parameters, cut into tensors of 16 Mi, with gradients that stay as they are. Answers "ready", then "seconds value"
for each line; value is the sum of the first parameters. `sluice` is sluice.torch.AdamW with its state in host memory,
`sluice-nvme` on the drive of FOLDER. The exit status is 3, with the reason, if a package is not installed or cannot run here.
"""

import os
import sys
import time

import torch

OPTIONS = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
TENSOR = 16 << 20


def make(kind, tensors, folder):
    if kind == "fused":
        return torch.optim.AdamW(tensors, fused=True, **OPTIONS)
    if kind == "deepspeed":
        os.environ["DS_ACCELERATOR"] = "cpu"
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        return DeepSpeedCPUAdam(tensors, adamw_mode=True, **OPTIONS)
    if kind == "torchao":
        from torchao.optim import CPUOffloadOptimizer
        return CPUOffloadOptimizer(tensors, torch.optim.AdamW, fused=True, **OPTIONS)
    import sluice.torch
    drive = [os.path.join(folder, "drive")] if kind == "sluice-nvme" else None
    host = "%dMiB" % (sum(t.numel() for t in tensors) * (9 if drive else 20) // 2**20)
    return sluice.torch.AdamW(tensors, nvme=drive, host=host, run_dir=os.path.join(folder, "run"), **OPTIONS)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    kind, count, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    os.environ["PATH"] = os.path.dirname(os.path.abspath(sys.executable)) + ":" + os.environ.get("PATH", "")  # ninja
    torch.manual_seed(1)
    tensors = [torch.nn.Parameter(torch.randn(min(TENSOR, count - at)) * 0.02) for at in range(0, count, TENSOR)]
    os.makedirs(folder, exist_ok=True)
    try:
        optimizer = make(kind, tensors, folder)
    except Exception as error:  # a peer's build can fail in many ways; torchao asserts that there is a GPU
        print("absent %s: %s" % (kind, (str(error) or type(error).__name__).split("\n")[0]), flush=True)
        sys.exit(3)
    for tensor in tensors:
        tensor.grad = torch.randn_like(tensor) * 1e-3
    print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        optimizer.step()
        print("%.9f %.9g" % (time.perf_counter() - begin, tensors[0][:1024].sum().item()), flush=True)


if __name__ == "__main__":
    main()
