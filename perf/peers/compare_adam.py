#!/usr/bin/env python3
"""Compares Sluice's Adam on the CPU with DeepSpeed's CPUAdam and PyTorch's fused AdamW.

Each row is one pass over the same number of parameters. The sides take turns step by step in one
process. Each has its own memory with the same layout, on huge pages that were touched before. A figure is
the median of its runs, a ratio compares medians within the row, and spread is half of the distance between
the quartiles, divided by the median. Before the timing of a row, its sides make three steps from the same
values and must agree.

  equal bytes   fp32 gradient, fp32 state, no working copy: each side moves 28 bytes per parameter
  needed pass   bf16 gradient in, fp32 state, bf16 parameter out, as mixed precision needs it. Sluice makes one
                pass. DeepSpeed converts the gradient to fp32, steps, and converts the parameter to bf16, by
                PyTorch's copies
  16-bit        16-bit moments. Sluice has an exact fp32 master as bf16 parameters and 16 low bits, and bf16
                moments, rounded stochastically (18 bytes). DeepSpeed has all tensors in bf16 (14 bytes), or
                bf16 parameters and gradients with fp32 moments (22 bytes); neither keeps an fp32 master

perf/peers/compare.py adam runs this with the interpreter that has the peers. DeepSpeed compiles its
optimizer at first use, which needs a C++ compiler and ninja; the result is kept for the next run.
"""
import argparse
import ctypes
import mmap
import os
import statistics
import sys
import time

LEARNING_RATE, BETA1, BETA2, EPSILON, WEIGHT_DECAY = 1e-4, 0.9, 0.95, 1e-8, 0.1
PERIOD, SKEW, HUGE = 65536, 16384, 2 << 20


def import_peers():
    """Returns torch or None, and DeepSpeedCPUAdam or None. Prints which one is missing."""
    try:
        import torch
    except ImportError as error:
        print(f"PyTorch: not found ({error}): nothing to compare with")
        return None, None
    try:
        import logging
        logging.disable(logging.WARNING)
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        DeepSpeedCPUAdam([torch.nn.Parameter(torch.zeros(64))])
    except Exception as error:  # its build can fail in many ways
        print(f"DeepSpeed's CPUAdam: not found or not built ({type(error).__name__}: {error}): its rows are left out")
        return torch, None
    return torch, DeepSpeedCPUAdam


class Arena:
    """Tensors on huge pages. Each lies SKEW further into a period than the one before."""

    def __init__(self, torch):
        self.torch, self.kept, self.count = torch, [], 0

    def tensor(self, elems, dtype):
        width = self.torch.empty(0, dtype=dtype).element_size()
        size = (elems * width + 2 * HUGE + PERIOD) // HUGE * HUGE + HUGE
        block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        block.madvise(mmap.MADV_HUGEPAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(block))
        offset = -base % HUGE + self.count * SKEW % PERIOD
        self.count += 1
        self.kept.append(block)
        out = self.torch.frombuffer(block, dtype=dtype, count=elems, offset=offset)
        out.zero_()
        return out


def fill(torch, streams, seed):
    """Fills every side's master (or params) and grads with the same values, which bf16 can hold. Moments are 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, scale in (("master", 0.02), ("grads", 1e-3)):
        block = (torch.randn(1 << 16, generator=generator) * scale).bfloat16()
        target = streams[name if name in streams else "params"]
        for at in range(0, target.numel(), block.numel()):
            part = target[at:at + block.numel()]
            part.copy_(block[:part.numel()])


class Scalars(ctypes.Structure):
    """The struct adam_library_scalars of perf/peers/adam_library.c."""
    _fields_ = [("threads", ctypes.c_int32), ("step", ctypes.c_int32), ("learning_rate", ctypes.c_float),
                ("beta1", ctypes.c_float), ("beta2", ctypes.c_float), ("epsilon", ctypes.c_float),
                ("weight_decay", ctypes.c_float)]


class Sluice:
    """kind: "fp32" (no working copy), "bf16" (gradient and copy) or "packed" (16 bits each)."""

    def __init__(self, torch, library, elems, threads, kind):
        self.name = "Sluice, split master" if kind == "packed" else "Sluice"
        self.adam, self.threads, self.step_idx, self.kind = library, threads, 0, kind
        arena = self.arena = Arena(torch)
        state_type = torch.bfloat16 if kind == "packed" else torch.float32
        flat_type = torch.float32 if kind == "fp32" else torch.bfloat16
        self.streams = {name: arena.tensor(elems, state_type) for name in ("master", "m", "v")}
        self.streams["grads"] = arena.tensor(elems, flat_type)
        self.streams["params"] = self.streams["master"] if kind == "fp32" else arena.tensor(elems, flat_type)
        start = {"grads": self.streams["grads"]}
        start["params" if kind == "packed" else "master"] = self.streams["params" if kind == "packed" else "master"]
        fill(torch, start, 1)

    def step(self):
        self.step_idx += 1
        scalars = Scalars(self.threads, self.step_idx, LEARNING_RATE, BETA1, BETA2, EPSILON, WEIGHT_DECAY)
        s = {name: ctypes.c_void_p(tensor.data_ptr()) for name, tensor in self.streams.items()}
        count = ctypes.c_uint64(self.streams["grads"].numel())
        half = int(self.kind != "fp32")
        rc = self.adam.adam_library_step(ctypes.byref(scalars), count, int(self.kind == "packed"), s["master"], s["m"],
                                         s["v"], s["grads"], half, s["params"], half)
        if rc < 0:
            sys.exit(f"Sluice's step failed: {self.adam.adam_library_error().decode()}")

    def result(self):
        return self.streams["params" if self.kind == "packed" else "master"]


class Peer:
    """An optimizer with PyTorch's interface, over one fp32 or bf16 parameter."""

    def __init__(self, torch, name, make, elems, kind, state_kind, converts, tensor_step):
        self.torch, self.name, self.converts = torch, name, converts
        arena = self.arena = Arena(torch)
        params = arena.tensor(elems, kind)
        m, v = arena.tensor(elems, state_kind), arena.tensor(elems, state_kind)
        grads = arena.tensor(elems, kind)
        if converts:
            self.grads_in = arena.tensor(elems, torch.bfloat16)
            self.params_out = arena.tensor(elems, torch.bfloat16)
        fill(torch, {"params": params, "grads": self.grads_in if converts else grads}, 1)
        self.param = torch.nn.Parameter(params)
        self.param.grad = grads
        self.optimizer = make([self.param])
        self.optimizer.state[self.param] = {
            "step": torch.tensor(0.0) if tensor_step else 0, "exp_avg": m, "exp_avg_sq": v}

    def step(self):
        if self.converts:
            self.param.grad.copy_(self.grads_in)
        self.optimizer.step()
        if self.converts:
            with self.torch.no_grad():
                self.params_out.copy_(self.param)

    def result(self):
        return self.param.data


def agree(torch, sides, tolerance):
    """Makes three steps of each side. The largest difference must be within the rounding of three steps."""
    for _ in range(3):
        for side in sides:
            side.step()
    first = sides[0].result()
    for side in sides[1:]:
        difference = (side.result().float() - first.float()).abs().max().item()
        if not difference <= tolerance:
            sys.exit(f"{side.name} and {sides[0].name} differ by {difference:.3g} after 3 steps, more than {tolerance:g}")


def time_row(sides, runs):
    """Returns the median in seconds and the spread of each side."""
    times = [[] for _ in sides]
    for run in range(runs + 1):
        for side, kept in zip(sides, times):
            start = time.perf_counter()
            side.step()
            seconds = time.perf_counter() - start
            if run > 0:
                kept.append(seconds)
    out = []
    for kept in times:
        kept.sort()
        median = statistics.median(kept)
        out.append((median, (kept[len(kept) * 3 // 4] - kept[len(kept) // 4]) / (2 * median)))
    return out


def report(options, row, threads, sides, figures, moved, wanted):
    """Prints one line for each side. The ratio says how many times as fast the first side is."""
    label = f"{threads} thread" + ("" if threads == 1 else "s")
    for side, (median, spread), byte_count in zip(sides, figures, moved):
        ns = median / options.elems * 1e9
        text = f"{row:12} {label:10} {side.name:34} {ns:7.3f} ns a parameter {byte_count / ns:6.1f} GB/s +-{100 * spread:4.1f}%"
        if side is not sides[0]:
            ratio = median / figures[0][0]
            text += f"   {sides[0].name} {ratio:5.2f} times as fast"
            if wanted:
                text += f" (wanted {wanted[side.name]:g})" if side.name in wanted else ""
        print(text, flush=True)
        if options.csv:
            with open(options.csv, "a") as file:  # perf/bench.h's columns; the peer's rate is the limit
                rate, first = 1 / ns, 1e-9 * options.elems / figures[0][0]
                name = f"Adam {row} {side.name} {label}".replace(",", "")
                if side is sides[0]:
                    file.write(f"{name},{first:.6g},Gparam/s,,,{spread:.4f}\n")
                else:
                    file.write(f"{name} (Sluice beside it),{first:.6g},Gparam/s,{rate:.6g},{first / rate:.4f},{spread:.4f}\n")


def compare(options, torch, deepspeed, library):
    def make_deepspeed(**more):
        return lambda params: deepspeed(params, lr=LEARNING_RATE, betas=(BETA1, BETA2), eps=EPSILON,
                                        weight_decay=WEIGHT_DECAY, adamw_mode=True, **more)

    def make_fused(params):
        return torch.optim.AdamW(params, lr=LEARNING_RATE, betas=(BETA1, BETA2), eps=EPSILON,
                                 weight_decay=WEIGHT_DECAY, fused=True)

    fp32, bf16 = torch.float32, torch.bfloat16
    elems = options.elems
    for threads in options.threads:
        torch.set_num_threads(threads)
        sides, moved = [Sluice(torch, library, elems, threads, "fp32")], [28, 28, 28]
        if deepspeed:
            sides.append(Peer(torch, "DeepSpeed CPUAdam", make_deepspeed(), elems, fp32, fp32, False, False))
        sides.append(Peer(torch, "PyTorch fused AdamW", make_fused, elems, fp32, fp32, False, True))
        agree(torch, sides, 2e-7)
        report(options, "equal bytes", threads, sides, time_row(sides, options.runs), moved,
               {"DeepSpeed CPUAdam": 0.97, "PyTorch fused AdamW": 1})
        sides, moved = [Sluice(torch, library, elems, threads, "bf16")], [28, 40, 40]
        if deepspeed:
            sides.append(Peer(torch, "DeepSpeed CPUAdam, copies", make_deepspeed(), elems, fp32, fp32, True, False))
        sides.append(Peer(torch, "PyTorch fused AdamW, copies", make_fused, elems, fp32, fp32, True, True))
        agree(torch, sides, 2e-7)
        report(options, "needed pass", threads, sides, time_row(sides, options.runs), moved,
               {"DeepSpeed CPUAdam, copies": 1.5, "PyTorch fused AdamW, copies": 1})
        if deepspeed:
            all_bf16 = make_deepspeed(fp32_optimizer_states=False)
            sides = [Sluice(torch, library, elems, threads, "packed"),
                     Peer(torch, "DeepSpeed CPUAdam, all bf16", all_bf16, elems, bf16, bf16, False, False),
                     Peer(torch, "DeepSpeed CPUAdam, fp32 moments", make_deepspeed(), elems, bf16, fp32, False, False)]
            agree(torch, sides, 1e-3)  # bf16's step is 2^-8 of values up to 0.1, and rounding may lose an update
            report(options, "16-bit", threads, sides, time_row(sides, options.runs), [18, 14, 22],
                   {"DeepSpeed CPUAdam, all bf16": 1.25})
        sides = None


def load_library(path):
    library = ctypes.CDLL(os.path.abspath(path))
    library.adam_library_error.restype = ctypes.c_char_p
    library.adam_library_variant.restype = ctypes.c_char_p
    return library


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", dest="adam", default="build/release/perf/libadam_compared.so",
                        help="the target adam_compared, as built")
    parser.add_argument("--quick", action="store_true", help="8 Mi parameters and 5 runs: for a first look")
    parser.add_argument("--millions", type=int, help="Mi parameters per row (32)")
    parser.add_argument("--runs", type=int, help="runs of each side (9)")
    parser.add_argument("--threads", default="", help="such as 1,2 (1 and all cores)")
    parser.add_argument("--csv", help="appends each figure, with the columns of perf/bench.h")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    options.threads = [int(text) for text in options.threads.split(",")] if options.threads else sorted({1, cores})
    if options.millions is None:
        options.millions = 8 if options.quick else 32
    if options.runs is None:
        options.runs = 5 if options.quick else 9
    options.elems = options.millions << 20
    if options.millions < 1 or options.runs < 1 or min(options.threads) < 1:
        parser.error("millions, runs and threads are 1 or more")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when OpenMP starts, at PyTorch's import
    # DeepSpeed looks for ninja in the path, and asks for CUDA's compiler only where this does not say "cpu".
    os.environ["PATH"] = os.path.dirname(os.path.abspath(sys.executable)) + ":" + os.environ.get("PATH", "")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    torch, deepspeed = import_peers()
    if not torch:
        return 0
    library = load_library(options.adam)
    print(f"Sluice {library.adam_library_variant().decode()}, PyTorch {torch.__version__}"
          f"{', DeepSpeed ' + __import__('deepspeed').__version__ if deepspeed else ''}; "
          f"{options.millions} Mi parameters, median of {options.runs} steps by turns")
    compare(options, torch, deepspeed, library)
    return 0


if __name__ == "__main__":
    sys.exit(main())
