#!/usr/bin/env python3
"""End-to-end tokens a second of GPT-2 124M, in memory and out of core.

    perf/bench_train.py [--quick] [--csv FILE] [--dir DIRECTORY] [--sluice FILE] [--runs N] [--shapes BxT,...]
                        [--dtypes bf16,fp32] [FIGURE...]

Figures: memory (bf16 and fp32, nothing recomputed; shapes B x T of 4x256, 16x256 and 4x1024: the last two have as many
tokens a step), out-of-core (every state on the drive that holds DIRECTORY, an eighth of the memory) and nvme-bound (few
tokens a step, so that the drive is what a step waits for).

The limit of a training in memory is the time of its model FLOPs at the speed of the best large matrix product of
the same dtype, which bench_peak measures before each run: a ratio of 0.6 is 60% of that peak (the field's MFU, of
what the machine has shown instead of what its maker says). The limit of a training out of core is the same job in
memory, by turns with it. The limit of a training that the drive binds is what bench_nvme reads alone and writes alone
just before each run, the better of ours and fio's, by the law that a drive's time is read / R + written / W. Medians
over the steps of all runs but the first two of each. --quick: a small model.
Writes below a directory of its own under DIRECTORY, some GB, and removes it.
"""

import argparse
import os
import re

from measure import (SHAPES, SLUICE, VOCAB, Summary, Table, count_of, dtypes_of, gpt2, job_of, lacks_memory, main_of, needs, place, plan, run,
                     scratch, shapes_of, train, write_tokens)


def peak_of(options, dtype):
    """GFLOP/s of a large product now."""
    found = re.search(r"peak product %s +([0-9.]+)" % dtype, run([options.peak]))
    return float(found.group(1))


def in_memory(options, table, work):
    for batch, tokens in options.shapes:
        jobs = {dtype: job_of(work, options.model(tokens), micro=batch, bf16=dtype == "bf16",
                              more={"tiers.place.inner_activations": "device"}) for dtype in options.dtypes}
        why = lacks_memory(options.sluice, work, next(iter(jobs.values())))
        if why:
            table.absent("train %s B=%d T=%d in memory" % (options.name, batch, tokens), why)
            continue
        speeds, peaks, flops = {}, {}, {}
        for _ in range(options.runs):
            for dtype, job in jobs.items():
                peaks.setdefault(dtype, []).append(peak_of(options, dtype))
                for line in train(options.sluice, work, job, options.steps):
                    speeds.setdefault(dtype, []).append(line["tokens_per_second"])
                    flops[dtype] = line["model_tflops"] * 1e12 / line["tokens_per_second"]  # of a token
        for dtype in jobs:
            got = Summary(speeds[dtype])
            peak = Summary(peaks[dtype]).median * 1e9
            table.add("train %s %s B=%d T=%d in memory" % (options.name, dtype, batch, tokens), got.median, "tokens/s",
                      peak / flops[dtype], got.spread,
                      "%.3f of %.3f TFLOP/s" % (got.median * flops[dtype] * 1e-12, peak * 1e-12))


def out_of_core(options, table, work):
    batch, tokens = options.shapes[-1]
    keep = {"tiers.place.inner_activations": "recompute"}
    memory = job_of(work, options.model(tokens), micro=batch, accumulation=options.accumulation, more=keep)
    nvme = job_of(work, options.model(tokens), micro=batch, accumulation=options.accumulation, homes=place("nvme"),
                  budgets=options.small, more=dict(keep, **{"schedule.update": "in_next_forward"}))
    why = lacks_memory(options.sluice, work, memory)
    if why:
        table.absent("train %s out of core" % options.name, why + ", which the limit does")
        return
    binds = plan(options.sluice, work, nvme)
    speeds = {"memory": [], "nvme": []}
    for _ in range(options.runs):
        for name, job in (("memory", memory), ("nvme", nvme)):
            speeds[name] += [line["tokens_per_second"] for line in train(options.sluice, work, job, options.steps)]
    inside, outside = Summary(speeds["memory"]), Summary(speeds["nvme"])
    table.add("train %s bf16 B=%dx%d T=%d out of core" % (options.name, batch, options.accumulation, tokens), outside.median,
              "tokens/s", inside.median, outside.spread,
              "in memory +-%.1f%%; by the plan's defaults %s binds" % (100 * inside.spread, binds["busiest_resource"]))


def drive_rates(options, work):
    """Bytes a second that the drive reads alone and writes alone now."""
    path = os.path.join(work, "drive.csv")
    run([options.nvme, "--modes", "read,write", "--settings", "1MiBx8,4MiBx4", "--rounds", "7", "--seconds", "0.2",
         "--csv", path, work, "512MiB"])
    rates = []
    with open(path) as lines:
        for line in lines:
            fields = line.split(",")
            rates.append(max(float(fields[1]), float(fields[3] or 0)) * 1e9)
    os.remove(path)
    return rates


def nvme_bound(options, table, work):
    layers, hidden = (4, 512) if options.quick else (12, 1024)
    job = job_of(work, gpt2(layers, hidden, 128, 256), micro=2, homes=place("nvme"), budgets=("512MiB", "512MiB"),
                 more={"schedule.update": "in_next_forward"})
    job["data"]["train"] = [os.path.join(work, "bytes")]
    write_tokens(os.path.join(work, "bytes"), vocab=256)
    shares, speeds, limits = [], [], []
    for _ in range(options.runs):
        reads, writes = drive_rates(options, work)
        for line in train(options.sluice, work, job, options.steps):
            moved = [line["lanes"][lane]["bytes"] for lane in ("read", "write")]
            limits.append(sum(moved) / (moved[0] / reads + moved[1] / writes))
            speeds.append(sum(moved) / line["seconds"])
            shares.append(speeds[-1] / limits[-1])
    got, share = Summary(speeds), Summary(shares)
    table.add("train gpt2 %dx%d B=2 T=128 all states on the drive" % (layers, hidden), got.median * 1e-9, "GB/s",
              Summary(limits).median * 1e-9, got.spread,
              "share of each step %.3f (%.3f to %.3f)" % (share.median, share.lowest, share.highest))


FIGURES = {"memory": in_memory, "out-of-core": out_of_core, "nvme-bound": nvme_bound}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help="of " + ", ".join(FIGURES))
    parser.add_argument("--quick", action="store_true", help="a small model, one run")
    parser.add_argument("--csv", help="appends a line for each figure")
    parser.add_argument("--dir", default=".", help="on the drive to use")
    parser.add_argument("--sluice", default=SLUICE)
    parser.add_argument("--peak", help="bench_peak; default: beside sluice's build")
    parser.add_argument("--nvme", help="bench_nvme; default: beside sluice's build")
    parser.add_argument("--shapes", default="", help="micro-batch x tokens, of memory and (the last) of out-of-core; default: " + SHAPES)
    parser.add_argument("--dtypes", default="bf16,fp32", help="of memory")
    parser.add_argument("--runs", type=count_of(1), default=3)
    parser.add_argument("--steps", type=count_of(3), default=5, help="of a run, the first two not counted")
    options = parser.parse_args()
    for name in options.figures:
        if name not in FIGURES:
            parser.error("%s is none of the figures %s" % (name, ", ".join(FIGURES)))
    options.peak = options.peak or os.path.join(os.path.dirname(options.sluice), "../../perf/bench_peak")
    options.nvme = options.nvme or os.path.join(os.path.dirname(options.sluice), "../../perf/bench_nvme")
    if options.quick:
        options.name, options.accumulation, options.small = "gpt2 4x256", 4, ("96MiB", "96MiB")
        options.model = lambda tokens: gpt2(4, 256, tokens, 8192)
        options.runs, options.steps = 1, 5
    else:
        options.name, options.accumulation, options.small = "gpt2-124m", 2, ("1GiB", "1GiB")
        options.model = lambda tokens: gpt2(tokens=tokens)
    options.shapes = shapes_of(options.shapes or ("4x128" if options.quick else SHAPES))
    options.dtypes = dtypes_of(options.dtypes)
    needs(options.sluice, options.peak, options.nvme)
    table = Table(options.csv)
    with scratch("bench-train.", options.dir) as work:
        write_tokens(os.path.join(work, "tokens"), vocab=8192 if options.quick else VOCAB)
        for name in options.figures or FIGURES:
            FIGURES[name](options, table, work)


if __name__ == "__main__":
    main_of(main)
