#!/usr/bin/env python3
"""Trains jobs on one GPU, against the limits of the same machine.

    perf/gpu/bench_gpu.py --host SIZE --data DIR [--sluice FILE] [--machine FILE] [--steps N] [--seconds N] JOB ...

First `sluice probe` measures the limits: copies each way alone and both at once, the device's own memory, large
bf16 products, and the drive that holds DIR. --machine names a file of an earlier probe instead. Then `sluice profile`
trains each job file for a few steps on random tokens, with SIZE of host memory, and this program prints a line of the
table. A job is skipped, with the reason, if it does not fit this machine, or if --seconds leave no time for it. A job
whose rules put more optimizer state on NVMe than the drive moves in DRIVE_STEP_SECONDS a step keeps fewer blocks there.

The figures are those of the median step. "of GEMM" is model FLOP/s (without recomputation) divided by the rate of the
large product. A lane's GB/s counts only the time in which it was busy. HBM is the GPU memory in use at the end, by
libraries too. Exit status 1: a job failed; 77: there is no GPU.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from measure import SLUICE, count_of, fail, main_of, measured_machine, needs, run, scratch, write_job

JOB_SECONDS_LEAST = 60  # a job starts only if this time is left
DRIVE_STEP_SECONDS = 12
LANES = (("h2d", 15), ("d2h", 15), ("read", 13), ("write", 13))


def read_job(options, path, work):
    """Reads a job file, whose comments have lines of their own, and fits it to this machine."""
    with open(path) as lines:
        job = json.loads("".join(line for line in lines if not line.lstrip().startswith("//")))
    job["run"]["dir"] = os.path.join(work, "run")
    job["tiers"].update({"host": {"budget": options.host}, "nvme": [{"path": os.path.join(work, "slabs")}]})
    job.pop("data", None)  # sluice profile then draws random tokens
    return job


def print_limits(machine):
    gpu, drive = machine["device"], machine["drives"][0]
    print("limits     h2d %.1f GB/s, d2h %.1f, both at once %.1f each; device memory %.0f GB/s\n"
          "           large bf16 product: %.1f TFLOP/s; drive: read %.2f GB/s, write %.2f\n" %
          (machine["h2d"]["pinned"] * 1e-9, machine["d2h"]["pinned"] * 1e-9, machine["h2d"]["pinned_both"] * 1e-9,
           gpu["memory_rate"] * 1e-9, gpu["flops_16bit"] * 1e-12, drive["read"] * 1e-9, drive["write"] * 1e-9), flush=True)


def limit_drive_state(options, machine, name, job, work):
    """Shortens the rules that put optimizer state on NVMe, all of which each step reads and writes."""
    rules = [rule for rule in job["tiers"]["place"].get("rules", [])
             if rule["kind"] == "optimizer" and rule["tier"] == "nvme"]
    if not rules:
        return
    said = run([options.sluice, "plan", write_job(work, "plan", job), "--json", "--machine", options.machine], allowed=(0, 3))
    if not said.startswith("{"):
        return  # sluice profile says why it does not fit
    lanes, drive = json.loads(said)["lanes"], machine["drives"][0]
    seconds = lanes["read"]["bytes"] / drive["read"] + lanes["write"]["bytes"] / drive["write"]
    for rule in rules if seconds > DRIVE_STEP_SECONDS else []:
        first, _, last = str(rule["units"]).partition("-")
        first = int(first)
        count = int(last or first) - first + 1
        kept = max(1, math.floor(count * DRIVE_STEP_SECONDS / seconds))
        rule["units"] = "%d-%d" % (first, first + kept - 1)
        print("%s: optimizer state on NVMe of %u blocks of the %u that the job has there: what the drive moves in "
              "%d s a step" % (name, kept, count, DRIVE_STEP_SECONDS))


def print_row(name, found, product):
    seconds, lanes = found["step_seconds"], found["lanes"]
    tflops = found["model_flops"] / seconds * 1e-12
    line = "%-26s %9.0f %8.1f %7.1f%% %6.1f%%" % (
        name, found["tokens_per_step"] / seconds, tflops, 100 * tflops * 1e12 / product,
        100 * sum(lane["stall_seconds"] for lane in lanes.values()) / seconds)
    for lane, width in LANES:
        rate, share = lanes[lane].get("bytes_per_second"), lanes[lane].get("share_of_ceiling")
        text = "-" if not rate else "%.1f" % (rate * 1e-9)
        line += " %*s" % (width, text + (" (%.0f%%)" % (100 * share) if share else ""))
    print(line + " %8.1f" % (found["gpu_used_bytes"] / 2**30), flush=True)


def run_job(options, machine, path, work, seconds):
    """Prints the job's line. Returns False if the job failed."""
    name = os.path.splitext(os.path.basename(path))[0]
    if seconds < JOB_SECONDS_LEAST:
        print("%-26s left out: no time is left" % name)
        return True
    job = read_job(options, path, work)
    limit_drive_state(options, machine, name, job, work)
    command = [options.sluice, "profile", write_job(work, name, job), "--json", "--machine", options.machine,
               "--steps", str(options.steps), "--no-advice"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            out, error = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            child.terminate()
            child.communicate()
            print("%-26s left out: it did not end in time" % name, flush=True)
            return True
    said = (error.strip().splitlines() or ["it said nothing"])[-1]
    if child.returncode == 0:
        print_row(name, json.loads(out), machine["device"]["flops_16bit"])
    else:
        print("%-26s %s: %s" % (name, "left out" if child.returncode == 3 else "FAILED", said), flush=True)
    return child.returncode in (0, 3)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n")[2].strip())
    parser.add_argument("--host", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--sluice", default=SLUICE)
    parser.add_argument("--machine")
    parser.add_argument("--steps", type=count_of(1), default=4)
    parser.add_argument("--seconds", type=count_of(1), default=24 * 3600)
    parser.add_argument("jobs", nargs="+", metavar="JOB")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    needs(options.sluice)
    with scratch("bench_gpu.", options.data) as work:
        options.machine = options.machine or measured_machine(options.sluice, work)
        try:
            with open(options.machine) as file:
                machine = json.load(file)
            if not machine["device"]["is_gpu"]:
                print("skipped: sluice finds no GPU")
                sys.exit(77)
            print_limits(machine)
        except (ValueError, LookupError) as error:
            fail("%s is no file that sluice probe wrote: %s" % (options.machine, error), 2)
        print("%-26s %9s %8s %8s %7s %15s %15s %13s %13s %8s" %
              ("job", "tokens/s", "TFLOP/s", "of GEMM", "stalls", "h2d GB/s", "d2h GB/s", "read GB/s", "write GB/s", "HBM GiB"))
        good = [run_job(options, machine, path, work, end - time.monotonic()) for path in options.jobs]
    sys.exit(0 if all(good) else 1)


main_of(main)
