#!/usr/bin/env python3
"""End-to-end tokens per second of GPT-2 124M, in memory and out of core.

    perf/training/bench_train.py [--quick] [--csv FILE] [--dir DIRECTORY] [--sluice FILE] [--runs N] [--shapes BxT,...]
                        [--dtypes bf16,fp32] [--rounds N] [--accumulation N] [--machine FILE] [FIGURE...]

Figures:
  memory              bf16 and fp32, nothing recomputed; shapes B x T of 4x256, 16x256 and 4x1024. The last two have the
                      same number of tokens per step.
  out-of-core         every state on the drive that holds DIRECTORY, an eighth of the memory, and so many micro-batches
                      per step that computing is the bottleneck
  out-of-core-small   the quickstart's model in 160 MiB
  nvme-bound          few tokens per step, so that a step waits for the drive
  update-overlap      the optimizer's state on the drive, everything else in memory, updates after the backward pass: the
                      time of a step minus its computing
  commit              the optimizer's state in memory, from where each commit saves it

In memory, the limit is the time of the model FLOPs at the speed of the best large matrix product of the same dtype, which
bench_peak measures before each run. A ratio of 0.6 is 60% of that peak (the field's MFU, but with the measured peak
instead of the maker's). The figures are medians over the steps of all runs, without the first two steps of each. --quick
uses small models.

Out of core, the limit is the same job in memory. Both are set up at the same time and take single steps in turns, in the
opposite order each round, after two rounds that do not count. The reason is that a machine drifts between whole runs by
as much as the difference to be measured. Each round has its own ratio of seconds; the line shows the median, lowest and
highest. Both jobs recompute inner activations, since the small memory could not keep them. The line also shows the ratio
that `sluice plan` predicts from the given machine.json, or from one that `sluice probe` measures first. With --quick it
shows only the bottleneck by the plan's defaults, which say nothing about this machine.

nvme-bound pauses the training after each step and measures the drive alone. A step is compared with the mean of the
measurements before and after it. There are four limits:
  - the best of fio for the same share of reads, through a few blocks of memory that no core of ours touches
  - fio that writes into each block before it submits it
  - our lanes through as much memory as a step uses
  - reading alone and writing alone (R and W, the better of ours and fio's), as a drive needs read / R + written / W
A virtual drive may copy by a core of the host. The host's caches then hold a few untouched blocks, but not the data that
a training reads, computes with and writes.

In update-overlap, an update is the time of a step minus its computing. Its limits are the slower of two: the drive, in
the same four ways, and Adam in a training that has its state in memory and takes turns with this one. A further line
compares it with the same transfers without Adam's arithmetic, in turns in one process.

commit is the time from the last byte in memory until the step is durable, checksums included. Its limit is the time to
write and sync the same number of bytes on the same drive, in turns with it. Both places of the state and the limit's file
are written before. State that rests on NVMe is on the drive already; perf/drives/durability.sh measures its commit.

Writes a few GB into its own directory under DIRECTORY and removes it.
"""

import argparse
import contextlib
import json
import math
import os
import re
import shutil
import statistics
import sys

for folder in ("..", "../drives"):
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), folder))
from bench_nvme import Drives, has_fio
from measure import (SHAPES, SLUICE, VOCAB, Side, Summary, Table, by_turns, count_of, dtypes_of, gpt2, job_of, lacks_memory,
                     main_of, measured_machine, needs, place, plan, run, scratch, shapes_of, train, watched, write_job, write_tokens)

QUICKSTART = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../configs/jobs/quickstart.json")


def peak_of(options, dtype):
    """Measures the GFLOP/s of a large product now."""
    found = re.search(r"peak product %s +([0-9.]+)" % dtype, run([options.peak]))
    return float(found.group(1))


def rounds_of(options, usual):
    return options.rounds or (2 if options.quick else usual)


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
                    flops[dtype] = line["model_tflops"] * 1e12 / line["tokens_per_second"]  # per token
        for dtype in jobs:
            got = Summary(speeds[dtype])
            peak = Summary(peaks[dtype]).median * 1e9
            table.add("train %s %s B=%d T=%d in memory" % (options.name, dtype, batch, tokens), got.median, "tokens/s",
                      peak / flops[dtype], got.spread,
                      "%.3f of %.3f TFLOP/s" % (got.median * flops[dtype] * 1e-12, peak * 1e-12))


def foretold(options, work, jobs):
    """Returns the plan's prediction for the two steps, as text."""
    if options.quick and not options.machine:
        return "by the plan's defaults what binds is %s" % plan(options.sluice, work, jobs["nvme"])["busiest_resource"]
    options.machine = options.machine or measured_machine(options.sluice, work)
    inside, outside = (plan(options.sluice, work, jobs[home], options.machine) for home in ("memory", "nvme"))
    return "foretold %.3f, and what binds is %s" % (inside["step_seconds"] / outside["step_seconds"], outside["busiest_resource"])


def beside_memory(options, table, work, name, jobs):
    """Steps of jobs["memory"] and jobs["nvme"] in turns. The job that waits need not be stopped: all transfers of its step
    are over, and its OpenMP threads sleep after spinning for milliseconds."""
    shape = (jobs["nvme"]["train_micro_batch_size_per_gpu"], jobs["nvme"]["gradient_accumulation_steps"],
             jobs["nvme"]["model"]["seq_length"])
    name = "train %s bf16 B=%dx%d T=%d out of core" % ((name,) + shape)
    for home, job in jobs.items():
        job["run"].update(dir=os.path.join(work, "run-" + home), steps=1 << 20)
        job["tiers"]["nvme"][0]["path"] = os.path.join(work, "slabs-" + home)
    why = lacks_memory(options.sluice, work, *jobs.values())
    if why:
        table.absent(name, why + ", out of core and its limit together")
        return
    said = foretold(options, work, jobs)
    with watched("both trainings"), contextlib.ExitStack() as sides:
        trainers = {home: begin(sides, Side([options.side, "train", write_job(work, home, job)], os.path.join(work, home + ".log")))
                    for home, job in jobs.items()}
        seconds, _ = by_turns(trainers, rounds_of(options, 8), swaps=True)
    inside, outside = (Summary([math.prod(shape) / took for took in seconds[home]]) for home in ("memory", "nvme"))
    ratio = Summary([memory / nvme for memory, nvme in zip(seconds["memory"], seconds["nvme"])])
    table.add(name, outside.median, "tokens/s", inside.median, outside.spread,
              "in memory +-%.1f%%; of each round %.3f (%.3f to %.3f); %s" %
              (100 * inside.spread, ratio.median, ratio.lowest, ratio.highest, said))
    for job in jobs.values():
        shutil.rmtree(job["run"]["dir"], ignore_errors=True)
        shutil.rmtree(job["tiers"]["nvme"][0]["path"], ignore_errors=True)


def out_of_core(options, table, work):
    batch, tokens = options.shapes[-1]
    keep = {"tiers.place.inner_activations": "recompute"}
    asked = {"micro": batch, "accumulation": options.accumulation or (4 if options.quick else 8)}
    beside_memory(options, table, work, options.name, {
        "memory": job_of(work, options.model(tokens), more=keep, **asked),
        "nvme": job_of(work, options.model(tokens), homes=place("nvme"), budgets=options.small,
                       more=dict(keep, **{"schedule.update": "in_next_forward"}), **asked)})


def out_of_core_small(options, table, work):
    """The quickstart's model. A step reads and writes 0.3 GB with 16 micro-batches, and 0.7 GB with 64, whose activations
    do not fit into 160 MiB of memory."""
    with open(QUICKSTART) as lines:
        model = json.loads("".join(line for line in lines if not line.startswith("//")))["model"]
    write_tokens(os.path.join(work, "bytes"), vocab=model["vocab_size"])
    accumulation = options.accumulation or (4 if options.quick else 64)
    jobs = {home: job_of(work, model, accumulation=accumulation, homes=place(at), budgets=budgets,
                         more={"data.train": [os.path.join(work, "bytes")], "schedule.update": "in_next_forward",
                               "tiers.place.inner_activations": "recompute"})
            for home, at, budgets in (("memory", "device", ("1GiB", "1GiB")), ("nvme", "nvme", ("64MiB", "96MiB")))}
    beside_memory(options, table, work, "quickstart", jobs)


# The settings tried on a drive, by fio and by us: a few blocks of memory that are used again and again.
FEW = ("256KiBx8", "512KiBx4", "512KiBx8", "1MiBx4", "1MiBx8", "4MiBx4")


def begin(sides, side):
    return sides.enter_context(contextlib.closing(side))


class Drive:
    """The drive alone, in runs of a sixth of a second, in turns with a training. round() returns rates by name."""

    def __init__(self, options, work, share, sides):
        size = "512MiB" if options.quick else "2GiB"  # about as much of the drive as a step uses
        self.drives = begin(sides, Drives(options.drive_side, work, size, os.path.join(work, "drive.log")))
        self.read_percent = round(100 * share)  # in the mix
        self.kinds = ["sluice"] + ["fio"] * has_fio()
        few = {(kind, mode): self.best(kind, mode) for kind in self.kinds for mode in ("read", "write", "mixed")}
        self.runs = {mode: [(kind, mode, few[kind, mode]) for kind in self.kinds] for mode in ("read", "write")}
        self.runs["mixed"] = [(self.kinds[-1], "mixed", few[self.kinds[-1], "mixed"])]
        if has_fio():
            self.runs["filled"] = [("filled", "mixed", self.best("filled", "mixed"))]
        self.runs["lanes"] = [("lanes", "mixed", "1MiBx8")]

    def rate(self, kind, mode, at):
        return self.drives.run(kind, mode, at, 0.15, read_percent=self.read_percent)[0]

    def best(self, kind, mode):
        """Returns the fastest setting, of two tries each."""
        rates = {at: max(self.rate(kind, mode, at) for _ in range(2)) for at in FEW}
        return max(rates, key=rates.get)

    def round(self):
        return {name: max(self.rate(*what) for what in runs) for name, runs in self.runs.items()}


def last_step(run_dir):
    """Returns the last step's line of metrics.jsonl."""
    with open(os.path.join(run_dir, "metrics.jsonl")) as lines:
        return json.loads(lines.readlines()[-1])


def step_of(trainer, run_dir, what="step"):
    """Makes one more step; returns its line of metrics.jsonl."""
    trainer.do(what)
    return last_step(run_dir)


def moved_by(step):
    """Returns the bytes read and the bytes written."""
    return [step["lanes"][lane]["bytes"] for lane in ("read", "write")]


class BesideDrive:
    """Turns of a training, with the drive alone before and after each. Compares their rates with the four limits."""

    def __init__(self, options, work, step, sides):
        reads, writes = moved_by(step)
        self.drive = Drive(options, work, reads / (reads + writes), sides)
        self.before = self.drive.round()
        self.speeds, self.alone, self.limits, self.shares = [], [], {}, {}

    def take(self, step, seconds, least=0):
        """Records a turn that moved the step's bytes in `seconds`. It cannot be faster than `least` seconds for other reasons."""
        reads, writes = moved_by(step)
        after = self.drive.round()
        now = {key: (self.before[key] + after[key]) / 2 for key in after}
        self.before = after
        now["law"] = (reads + writes) / (reads / now["read"] + writes / now["write"])
        self.speeds.append((reads + writes) / seconds)
        self.alone.append((now["read"] * 1e-9, now["write"] * 1e-9))
        for key, rate in now.items():
            limit = (reads + writes) / max((reads + writes) / rate, least)
            self.limits.setdefault(key, []).append(limit * 1e-9)
            self.shares.setdefault(key, []).append(self.speeds[-1] / limit)

    def tell(self, table, name):
        """Adds a line for each limit."""
        got = Summary(self.speeds)
        said = {"mixed": "the same mix by %s, few blocks" % ("fio" if has_fio() else "us"),
                "filled": "the same mix by fio that writes into its blocks",
                "lanes": "both ways by us, through 256 MiB of memory",
                "law": "reading alone, writing alone: %.2f, %.2f" % tuple(Summary(rates).median for rates in zip(*self.alone))}
        for key, about in said.items():
            if key in self.limits:
                share = Summary(self.shares[key])
                table.add(name, got.median * 1e-9, "GB/s", Summary(self.limits[key]).median, got.spread,
                          "%s; of each step %.3f (%.3f to %.3f)" % (about, share.median, share.lowest, share.highest))


def nvme_bound(options, table, work, sides):
    layers, hidden = (4, 512) if options.quick else (12, 1024)
    job = job_of(work, gpt2(layers, hidden, 128, 256), micro=2, homes=place("nvme"), budgets=("512MiB", "512MiB"),
                 more={"schedule.update": "in_next_forward"})
    job["data"]["train"] = [os.path.join(work, "bytes")]
    job["run"]["steps"] = 1 << 20
    write_tokens(os.path.join(work, "bytes"), vocab=256)
    machine = [options.machine] if options.machine else []
    trainer = begin(sides, Side([options.side, "train", write_job(work, "job", job)] + machine, os.path.join(work, "train.log")))
    for _ in range(3):
        step = step_of(trainer, job["run"]["dir"])
    turns = BesideDrive(options, work, step, sides)
    for _ in range(rounds_of(options, 7)):
        step = step_of(trainer, job["run"]["dir"])
        turns.take(step, step["seconds"])
    turns.tell(table, "train gpt2 %dx%d B=2 T=128 all states on the drive" % (layers, hidden))


def update_overlap(options, table, work, sides):
    """The update alone: after the backward pass, its state on the drive, everything else in memory. The host's budget is
    small, because data that it holds may be read while the backward pass still computes. This makes the phase look
    faster than it is, here by a few percent."""
    layers, hidden = (4, 512) if options.quick else (12, 768)
    write_tokens(os.path.join(work, "bytes"), vocab=256)
    name = "update of gpt2 %dx%d, state on the drive" % (layers, hidden)
    jobs = {}
    for home in ("nvme", "device"):
        jobs[home] = job_of(work, gpt2(layers, hidden, 128, 256), micro=1, homes=dict(place("device"), optimizer=home),
                            budgets=("4GiB", "128MiB"), more={"schedule.update": "after_backward"})
        jobs[home]["data"]["train"] = [os.path.join(work, "bytes")]
        jobs[home]["run"].update(dir=os.path.join(work, "run-" + home), steps=1 << 20)
    why = lacks_memory(options.sluice, work, jobs["device"])
    if why:
        table.absent(name, why)
        return
    trainers = {home: begin(sides, Side([options.side, "train", write_job(work, home, job)], os.path.join(work, home + ".log")))
                for home, job in jobs.items()}

    def step(home, what="step"):
        """Makes a step; returns its line of metrics, and its seconds minus those of computing."""
        line = step_of(trainers[home], jobs[home]["run"]["dir"], what)
        return line, line["seconds"] - line["lanes"]["compute"]["busy_seconds"]

    for what in ("step", "bare", "step"):
        step("device")
        line, _ = step("nvme", what)
    turns = BesideDrive(options, work, line, sides)
    told = {"phase": [], "without": [], "seen": [], "Adam beside": [], "Adam": []}
    rates = {"phase": [], "without": []}
    for turn in range(rounds_of(options, 7)):
        took = {}
        for what in ("step", "bare") if turn % 2 else ("bare", "step"):
            line, took[what] = step("nvme", what)
            if what == "step":
                full = line
        adam = step("device")[0]["lanes"]["update"]["busy_seconds"]
        turns.take(full, took["step"], adam)
        for key, seconds in (("phase", took["step"]), ("without", took["bare"]), ("seen", took["step"] - took["bare"]),
                             ("Adam beside", full["lanes"]["update"]["busy_seconds"]), ("Adam", adam)):
            told[key].append(seconds)
            if key in rates:
                rates[key].append(sum(moved_by(full)) * 1e-9 / seconds)
    turns.tell(table, name)
    seen = sorted(told.pop("seen"))  # may be 0 or less
    told = {key: Summary(times) for key, times in told.items()}
    phase, without = Summary(rates["phase"]), Summary(rates["without"])
    table.add(name, phase.median, "GB/s", without.median, phase.spread,
              "the same transfers without Adam's arithmetic: %.3f s, with it %.3f s, longer by %.3f s (%.3f to %.3f) a step; "
              "Adam takes %.3f s of it, alone in memory %.3f s" %
              (told["without"].median, told["phase"].median, statistics.median(seen), seen[0], seen[-1],
               told["Adam beside"].median, told["Adam"].median))


def commit(options, table, work, sides):
    layers, hidden = (4, 256) if options.quick else (8, 1024)
    write_tokens(os.path.join(work, "bytes"), vocab=256)
    job = job_of(work, gpt2(layers, hidden, 64, 256), micro=1, homes=dict(place("device"), optimizer="host"),
                 budgets=("4GiB", "4GiB"), more={"schedule.update": "after_backward", "run.commit_every": 1 << 20})
    job["data"]["train"] = [os.path.join(work, "bytes")]
    job["run"]["steps"] = 1 << 20
    size = plan(options.sluice, work, job)["commit"]["bytes"]
    trainer = begin(sides, Side([options.side, "train", write_job(work, "job", job)], os.path.join(work, "train.log")))
    drive = begin(sides, Side([options.side, "io", work, str(size)], os.path.join(work, "drive.log")))
    commits, limits = [], []
    for turn in range(-3, options.rounds or (7 if options.quick else 9)):
        trainer.do("step")
        took, (written, moved) = trainer.do("commit")[0], drive.do("durable")
        if turn >= 0:
            commits.append(size * 1e-9 / took)
            limits.append(moved * 1e-9 / written)
    got = Summary(commits)
    table.add("commit of state in memory", got.median, "GB/s", Summary(limits).median, got.spread,
              "%.0f MB" % (size * 1e-6))


def with_sides(figure):
    """Gives the figure a stack of programs, which are always ended before their folder is removed."""
    def made(options, table, work):
        with contextlib.ExitStack() as sides:
            figure(options, table, work, sides)
    return made


FIGURES = {"memory": in_memory, "out-of-core": out_of_core, "out-of-core-small": out_of_core_small,
           "nvme-bound": with_sides(nvme_bound), "update-overlap": with_sides(update_overlap), "commit": with_sides(commit)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help="from " + ", ".join(FIGURES))
    parser.add_argument("--quick", action="store_true", help="small models, one run, two rounds")
    parser.add_argument("--csv", help="appends a line for each figure")
    parser.add_argument("--dir", default=".", help="on the drive to use")
    parser.add_argument("--sluice", default=SLUICE)
    parser.add_argument("--peak", help="bench_peak; default: beside sluice's build")
    parser.add_argument("--drive-side", help="default: beside sluice's build")
    parser.add_argument("--shapes", default="", help="micro-batch x tokens, for memory and (the last) for out-of-core; default: " + SHAPES)
    parser.add_argument("--dtypes", default="bf16,fp32", help="for memory")
    parser.add_argument("--runs", type=count_of(1), default=3, help="for memory")
    parser.add_argument("--steps", type=count_of(3), default=5, help="steps of a run of memory; the first two do not count")
    parser.add_argument("--rounds", type=count_of(1), help="rounds of the other figures, a step of each side (default: 7; for "
                        "out-of-core and out-of-core-small 8, for commit 9; with --quick 2, for commit 7)")
    parser.add_argument("--accumulation", type=count_of(1), help="micro-batches per step for out-of-core (default: 8) and "
                        "out-of-core-small (64); with --quick 4")
    parser.add_argument("--machine", help="machine.json for the prediction of out-of-core, by default measured now in under 30 s "
                        "(with --quick: none); and for the plan of nvme-bound, by default none")
    options = parser.parse_args()
    for name in options.figures:
        if name not in FIGURES:
            parser.error("%s is none of the figures %s" % (name, ", ".join(FIGURES)))
    options.peak = options.peak or os.path.join(os.path.dirname(options.sluice), "../../perf/bench_peak")
    options.side = os.path.join(os.path.dirname(options.sluice), "../../perf/bench_side")
    options.drive_side = options.drive_side or os.path.join(os.path.dirname(options.sluice), "../../perf/drive_side")
    if options.quick:
        options.name, options.small = "gpt2 4x256", ("96MiB", "96MiB")
        options.model = lambda tokens: gpt2(4, 256, tokens, 8192)
        options.runs, options.steps = 1, 5
    else:
        options.name, options.small = "gpt2-124m", ("1GiB", "1GiB")
        options.model = lambda tokens: gpt2(tokens=tokens)
    options.shapes = shapes_of(options.shapes or ("4x128" if options.quick else SHAPES))
    options.dtypes = dtypes_of(options.dtypes)
    needs(options.sluice, options.peak, options.drive_side, options.side)
    table = Table(options.csv)
    with scratch("bench-train.", options.dir) as work:
        write_tokens(os.path.join(work, "tokens"), vocab=8192 if options.quick else VOCAB)
        for name in options.figures or FIGURES:
            FIGURES[name](options, table, work)


if __name__ == "__main__":
    main_of(main)
