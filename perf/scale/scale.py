#!/usr/bin/env python3
"""Scale that is executed: models of 4 billion to a trillion parameters on this machine, checked against their plans.

    perf/scale/scale.py [--sluice FILE] [--dir DIRECTORY] TRIAL...
    perf/scale/scale.py --list

Trials:
  rank-1t     ZeRO-Infinity's 1T, unscaled: rank 17 of 512, its transfers alone (configs/jobs/infinity-1t-rank.json)
  rank-100b   100B with real computing: rank 0 of 32, two steps of 256 tokens
  train-10b   10B trained on text in one process, split masters and 8-bit moments: 5 steps of 1024 tokens. The run is
              stopped in step 2 and goes on; a run that is not stopped has the same losses, to the bit
  train-4b    4B trained on text, exact Adam in fp32: 5 steps of 1024 tokens
  train-moe   a mixture of 8B parameters, 4 of 64 experts a token, so that 1B compute a token, trained on text as train-10b is:
              5 steps of 1024 tokens; beside it 3 steps of a model of the same size without experts

Each trial first says what disk, memory and time it needs, and is left out if the machine has too little. It prints its
figures and checks them: the bytes of each lane are those of the plan; the memory of each tier is what the plan says, and
at most its budget; no page of the slabs is in the page cache; the losses are finite and fall. It removes its files. The
exit status is 1 if a check fails. The times are for two cores and a drive of 2 GB/s, with nothing else on the machine.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from measure import SLUICE, TIERS, fail, main_of, memory_gib, needs, scratch, write_job

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
EXIT_STOPPED = 75
BESIDE_BYTES = 1 << 30  # what a process may take beside its arenas: code, libraries, the plan
LANES = ("read", "write", "h2d", "d2h", "comm")
# Adam's first step moves every parameter by the learning rate, and in a fresh model most of these moves point the same way.
# In one layer of 16384 inputs they change an output by about 0.4 x 16384 rates, in 50 layers by 330000. The values on the
# residual path are about 1, so a rate above 1e-6 needs a warm-up: with 1e-5 the loss of 10B rose from 11 to 31.
LEARNING_RATE = 1e-6


class Watch:
    """Looks at a process every two seconds: its peak memory, and the pages of its slabs in the page cache."""

    def __init__(self, command, out):
        """Standard output goes to the file `out`, standard error to the same name with .err."""
        self.resident, self.cached, self.slab, self.out = 0, 0, 0, out
        with open(out, "w") as text, open(out + ".err", "w") as errors:
            self.process = subprocess.Popen(command, stdout=text, stderr=errors)

    def look(self):
        folder = "/proc/%d" % self.process.pid
        try:
            with open(folder + "/status") as lines:
                for line in lines:
                    if line.startswith("VmHWM"):
                        self.resident = max(self.resident, int(line.split()[1]) << 10)
            slabs = [path for path in (os.path.join(folder, "fd", name) for name in os.listdir(folder + "/fd"))
                     if ".slab" in os.readlink(path)]
            sizes = subprocess.run(["fincore", "--bytes", "--noheadings", "--output", "RES,SIZE"] + slabs,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout if slabs else ""
        except (OSError, IndexError):
            return  # it has ended
        rows = [[int(word) for word in line.split()] for line in sizes.splitlines()]
        self.cached = max(self.cached, sum(row[0] for row in rows))
        self.slab = max(self.slab, sum(row[1] for row in rows))

    def stop_after(self, metrics, step):
        """Asks the process to stop when its metrics have the step."""
        while self.process.poll() is None and last_step(metrics) < step:
            self.look()
            time.sleep(1)
        self.process.send_signal(signal.SIGTERM)  # a background shell lets its children ignore SIGINT

    def end(self, wanted=0):
        while self.process.poll() is None:
            self.look()
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                pass
        with open(self.out) as text, open(self.out + ".err") as errors:
            if self.process.returncode != wanted:
                fail("exit %d: %s" % (self.process.returncode, "".join(errors.readlines()[-3:])))
            return text.read()


def last_step(metrics):
    try:
        with open(metrics) as lines:
            return max([json.loads(line).get("step", 0) for line in lines if line.endswith("\n")] or [0])
    except OSError:
        return 0


class Checks:
    def __init__(self, trial):
        self.trial, self.failed = trial, 0

    def expect(self, what, holds):
        if not holds:
            self.failed += 1
            print("%s: WRONG: %s" % (self.trial, what), flush=True)

    def equal(self, what, measured, planned):
        self.expect("%s: %s, planned %s" % (what, measured, planned), measured == planned)

    def memory(self, watch, peaks, planned, budgets):
        for tier in TIERS:
            self.equal("memory of %s" % tier, peaks[tier], planned[tier])
            self.expect("%s: %d bytes of a budget of %d" % (tier, peaks[tier], budgets[tier]), peaks[tier] <= budgets[tier])
        arenas = peaks["device"] + peaks["host"]
        self.expect("the process has %.2f GiB, its arenas %.2f" % (watch.resident / 2**30, arenas / 2**30),
                    0 < watch.resident <= arenas + BESIDE_BYTES)
        self.expect("no slab was seen", watch.slab > 0)
        self.equal("bytes of the slabs in the page cache", watch.cached, 0)
        print("  memory: device %.2f, host %.2f GiB, the whole process %.2f; %.2f GiB of slab, %d bytes of it in the page cache"
              % (peaks["device"] / 2**30, peaks["host"] / 2**30, watch.resident / 2**30, peaks["nvme"] / 2**30, watch.cached),
              flush=True)

    def lanes(self, measured, planned):
        for lane in LANES:
            self.equal("bytes of lane %s" % lane, measured[lane], planned[lane])
        print("  a step moves: %s" % ", ".join("%s %.2f GB" % (lane, measured[lane] * 1e-9) for lane in LANES
                                              if measured[lane]), flush=True)


def settings(work):
    return ["--set", "run.dir=" + os.path.join(work, "run"), "--set", "tiers.nvme.0.path=" + os.path.join(work, "slabs")]


def profile(options, work, checks, job, more):
    watch = Watch([options.sluice, "profile", job, "--json", "--no-advice", "--steps", "1"] + settings(work) + more,
                    os.path.join(work, "profile"))
    found = json.loads(watch.end())
    print("  %.2fe9 parameters; a step took %.1f s, planned %.1f from %s; binds: %s (planned %s)" %
          (found["parameters"] * 1e-9, found["step_seconds"], found["predicted_step_seconds"],
           "the machine's figures" if found["machine_is_measured"] else "default rates",
           found["binding"]["resource"], found["predicted_binding"]["resource"]))
    checks.lanes(*({lane: found["lanes"][lane][key] for lane in LANES} for key in ("bytes", "predicted_bytes")))
    checks.memory(watch, found["peak_bytes"], found["planned_peak_bytes"], found["budget_bytes"])
    return found


def rank_1t(options, work, checks):
    write_text(os.path.join(work, "text"))
    found = profile(options, work, checks, os.path.join(ROOT, "configs/jobs/infinity-1t-rank.json"),
                    ["--set", "data.train=" + os.path.join(work, "text"), "--as-rank", "17", "--of", "512",
                     "--transfers-only", "--comm-speed", "100", "--machine", "none"])
    checks.equal("blocks", found["as_rank"]["blocks"], 128)
    checks.expect("the model has 10^12 parameters", found["parameters"] > 10**12)


def large_job(work, model, device, host, more):
    job = {"model": dict(model), "data": {"train": [os.path.join(work, "text")], "tokenizer": "bytes", "seed": 1},
           "run": {"dir": "runs", "steps": 5, "seed": 1, "eval_every": 0, "commit_every": 0},
           "device": {"backend": "cpu"},
           "tiers": {"device": {"budget": device}, "host": {"budget": host}, "nvme": [{"path": "slabs"}]},
           "schedule": {"update": "in_backward"}, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1,
           "gradient_clipping": 0, "bf16": {"enabled": True, "check_grad_overflow": False},
           "optimizer": {"type": "AdamW", "params": {"lr": LEARNING_RATE}}, "zero_optimization": {"stage": 3}}
    job.update(more)
    job = {key: value for key, value in job.items() if value is not None}
    return write_job(work, "job", job)


def rank_100b(options, work, checks):
    """Updates go along with the backward pass, so that gradients rest nowhere and each step is a steady one."""
    job = large_job(work, {"preset": "gpt-100b", "seq_length": 256}, "8GiB", "4GiB", {"data": None})
    profile(options, work, checks, job, ["--as-rank", "0", "--of", "32", "--comm-speed", "100"])


def write_text(path):
    """The documents and sources of this tree."""
    with open(path, "wb") as out:
        for folder, folders, names in os.walk(ROOT):
            folders[:] = sorted(name for name in folders if name in ("src", "swap", "tiers", "kernels", "tests", "perf", "configs")
                                or not folder == ROOT)
            for name in sorted(names):
                if name.endswith((".md", ".c", ".h")):
                    with open(os.path.join(folder, name), "rb") as text:
                        out.write(text.read())


def steps_of(run):
    with open(os.path.join(run, "metrics.jsonl")) as lines:
        return [line for line in map(json.loads, lines) if "event" not in line]


def plan_of(run):
    with open(os.path.join(run, "plan.json")) as file:
        return json.load(file)


def train(options, work, checks, job, name, steps, stop_after=0):
    """Returns the lines of the steps of a run, which is removed. With stop_after it is stopped there and goes on."""
    run = os.path.join(work, name)
    command = [options.sluice, "train", job, "--json", "--set", "run.dir=" + run, "--set",
               "tiers.nvme.0.path=" + os.path.join(work, "slabs"), "--set", "run.steps=%d" % steps]
    begin = time.monotonic()
    watch = Watch(command, os.path.join(work, name + ".out"))
    plans = []  # of each step: a run that goes on may plan otherwise, since it measures the machine anew
    if stop_after:
        watch.stop_after(os.path.join(run, "metrics.jsonl"), stop_after)
        watch.end(EXIT_STOPPED)
        plans = [plan_of(run)] * len(steps_of(run))
        checks.expect("the stop came before step 3", len(plans) < 3)
        before, watch = watch, Watch(command, os.path.join(work, name + ".out"))
        print("  %s: stopped and goes on after %.0f s" % (name, time.monotonic() - begin), flush=True)
    found = json.loads(watch.end())
    if stop_after:
        watch.resident, watch.cached = max(watch.resident, before.resident), max(watch.cached, before.cached)
    lines = steps_of(run)
    plan = plan_of(run)
    plans += [plan] * (len(lines) - len(plans))
    print("  %s: %d steps of %d tokens, %.0f s with start and end; %s" %
          (name, len(lines), lines[0]["tokens"], time.monotonic() - begin,
           ", ".join("%.4f in %.1f s" % (line["loss"], line["seconds"]) for line in lines)))
    checks.equal("steps", [line["step"] for line in lines], list(range(1, steps + 1)))
    checks.expect("the losses are finite and fall", all(math.isfinite(line["loss"]) for line in lines) and
                  lines[-1]["loss"] < lines[0]["loss"])
    for line, its in zip(lines, plans):
        for lane in LANES[:4]:
            checks.equal("step %d: bytes of lane %s" % (line["step"], lane), line["lanes"][lane]["bytes"],
                         its["lanes"][lane]["bytes"])
    checks.lanes(*({lane: found["lanes"].get(lane, {"bytes": 0})["bytes"] for lane in LANES} for found in (lines[-1], plan)))
    checks.memory(watch, found["ranks"][0]["arena_bytes"], plan["peak_bytes"], plan["budget_bytes"])
    best = min(line["seconds"] for line in lines)
    print("  %.1f tokens/s, %.3f model TFLOP/s in the fastest step; planned %.1f s a step, took %.1f to %.1f" %
          (lines[0]["tokens"] / best, lines[0]["model_tflops"] * lines[0]["seconds"] / best, plan["step_seconds"], best,
           max(line["seconds"] for line in lines)), flush=True)
    subprocess.run([options.sluice, "remove", run, "--yes"], stdout=subprocess.DEVNULL, check=False)
    return lines


def train_10b(options, work, checks):
    write_text(os.path.join(work, "text"))
    job = large_job(work, {"preset": "gpt2-10b"}, "5GiB", "7GiB", {"state": {"master": "split", "moments": "8bit"}})
    # The step that runs when the signal comes is finished, so step 3 is the first one after the stop.
    stopped = train(options, work, checks, job, "stopped", 5, stop_after=1)
    whole = train(options, work, checks, job, "whole", 3)
    checks.equal("losses with the stop", [line["loss_bits"] for line in stopped[:3]], [line["loss_bits"] for line in whole])


def train_4b(options, work, checks):
    write_text(os.path.join(work, "text"))
    train(options, work, checks, large_job(work, {"preset": "zero-offload-4b"}, "5GiB", "7GiB", {}), "run", 5)


def train_moe(options, work, checks):
    write_text(os.path.join(work, "text"))
    small = {"state": {"master": "split", "moments": "8bit"}}
    width = {"hidden_size": 2048, "num_heads": 16, "seq_length": 1024, "vocab_size": 32000}
    mixture = dict(width, family="olmoe", num_layers=19, num_experts=64, num_experts_per_tok=4, expert_ffn_size=1024)
    dense = dict(width, family="llama", num_layers=19, ffn_size=66560)
    for name, model, steps in ("mixture", mixture, 5), ("dense", dense, 3):
        train(options, work, checks, large_job(work, model, "4GiB", "6GiB", small), name, steps)


# Name: the function; GB of disk, GiB of memory, minutes.
TRIALS = {"rank-1t": (rank_1t, 46, 13, 10), "rank-100b": (rank_100b, 50, 14, 15), "train-10b": (train_10b, 63, 14, 20),
          "train-4b": (train_4b, 56, 14, 10), "train-moe": (train_moe, 53, 11, 20)}


def lacks(options, name):
    """Says what the trial needs; returns what is missing, or None."""
    _, disk, memory, minutes = TRIALS[name]
    space = os.statvfs(options.dir)
    free = space.f_bavail * space.f_frsize * 1e-9
    print("%s: needs %d GB of disk (%.0f are free), %d GiB of memory (%.1f are free), some %d minutes" %
          (name, disk, free, memory, memory_gib(), minutes), flush=True)
    return "disk" if free < disk else "memory" if memory_gib() < memory else None


def main():
    parser = argparse.ArgumentParser(description="Scale that is executed", epilog=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help="of " + ", ".join(TRIALS))
    parser.add_argument("--sluice", default=os.path.join(ROOT, SLUICE))
    parser.add_argument("--dir", default=".", help="on the drive to use")
    parser.add_argument("--list", action="store_true", help="says what each trial needs, and runs none")
    options = parser.parse_args()
    for name in options.trials:
        if name not in TRIALS:
            parser.error("%s is none of the trials %s" % (name, ", ".join(TRIALS)))
    if not options.list and not options.trials:
        parser.error("names no trial; --list says what each needs")
    if not options.list:
        needs(options.sluice)
    failed = []
    for name in TRIALS if options.list else options.trials:
        missing = lacks(options, name)
        if missing and not options.list:
            print("%s: left out, too little %s" % (name, missing))
        if missing or options.list:
            continue
        checks = Checks(name)
        with scratch("scale.", options.dir) as work:
            begin = time.monotonic()
            TRIALS[name][0](options, work, checks)
            print("%s: %s after %.0f s" % (name, "%d checks FAILED" % checks.failed if checks.failed else "all as planned",
                                           time.monotonic() - begin), flush=True)
        if checks.failed:
            failed.append(name)
    if failed:
        fail("wrong: " + ", ".join(failed))


if __name__ == "__main__":
    main_of(main)
