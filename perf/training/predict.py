#!/usr/bin/env python3
"""How well `sluice plan` predicts a step on this machine.

    perf/training/predict.py [options] [JOB...]      --help; the jobs' names are in JOBS below

Each job has its own shape: its bottleneck is computing, or the drive, or both almost equally. `sluice profile` runs a
few steps of each as a trial, with the given machine.json or with one that `sluice probe` measures first. The table has
the predicted step, the median of the measured steps with the fastest and slowest, their ratio, the predicted and the
measured bottleneck, and per tier the reserved bytes, which must equal the planned ones. The exit status is 1 if a step
is off by more than --within percent, or if a bottleneck or a number of bytes differs.

With --probe-each the machine is measured before and after each job, and the table says what the second measurement
predicts too. Where the two predictions differ by more than 3 percent, the machine itself changed meanwhile: such a job
says nothing about the prediction. It is marked "moved", its time counts neither in the errors below nor in the exit
status, and only its bytes are checked.

The bottleneck is the resource whose lanes are busy longest (the time in which at least one of their ops runs). `sluice
profile` applies the same rule to the simulation and to the run: "drives" are read and write together, since a drive is
one resource; "cores" on a CPU are compute and update together; every other lane is its own resource.

Uses the standard library only. Writes into its own directory under --dir and removes it at the end.
"""

import argparse
import json
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from measure import SLUICE, TIERS, main_of, measured_machine, plan, run, scratch, write_job

MOVED = 0.03  # two measurements of a machine that differ by more are not of the same machine


def model(family, layers, hidden, tokens, vocab=256):
    spec = {"family": family, "num_layers": layers, "hidden_size": hidden, "num_heads": hidden // 64,
            "vocab_size": vocab, "seq_length": tokens, "tie_embeddings": True}
    if family == "llama":
        spec["ffn_size"] = hidden * 8 // 3 // 64 * 64
    return spec


def place(params, grads, optimizer, activations, inner="recompute"):
    return {"params": params, "grads": grads, "optimizer": optimizer, "activations": activations,
            "inner_activations": inner}


# name: (purpose, model, micro-batch, accumulation, homes, further keys)
JOBS = {
    "memory": ("all in memory", model("gpt2", 8, 768, 512), 2, 2,
               place("device", "device", "device", "device"), {}),
    "optimizer-nvme": ("optimizer on NVMe", model("llama", 12, 768, 512), 4, 2,
                       place("host", "host", "nvme", "device"),
                       {"schedule.update": "in_next_forward"}),
    "all-nvme": ("all on NVMe", model("gpt2", 10, 768, 512), 2, 2,
                 place("nvme", "nvme", "nvme", "nvme"), {"schedule.update": "in_next_forward"}),
    "compute": ("compute-bound", model("llama", 6, 1024, 1024), 2, 2,
                place("host", "host", "host", "host"), {}),
    "io": ("I/O-bound", model("gpt2", 12, 1024, 128), 2, 1,
           place("nvme", "nvme", "nvme", "nvme"), {"schedule.update": "in_next_forward"}),
    "activations-nvme": ("activations on NVMe", model("llama", 6, 768, 512), 4, 4,
                         place("host", "host", "host", "nvme", "nvme"), {}),
    "parts": ("units cut in parts", model("gpt2", 6, 1024, 512), 2, 2,
              place("host", "host", "nvme", "host"), {"model.max_part_bytes": "6MiB"}),
    "vocabulary": ("a large vocabulary", model("gpt2", 4, 768, 256, 32000), 4, 1,
                   place("host", "host", "host", "device"), {}),
    "tight": ("all on NVMe, with little host memory", model("gpt2", 12, 768, 512, 50257), 1, 1,
              place("nvme", "nvme", "nvme", "host", "auto"), {"tiers.host.budget": "1GiB"}),
    # No figure of the cost model was ever fitted to these three:
    "batch-major": ("batch-major order", model("llama", 10, 640, 384), 2, 3,
                    place("host", "host", "nvme", "host"), {"schedule.order": "batch_major"}),
    "fp32": ("fp32 operands", model("gpt2", 4, 896, 256), 2, 2,
             place("host", "host", "host", "device"), {"bf16.enabled": False}),
    "wide": ("few wide layers", model("llama", 3, 1536, 768), 1, 2,
             place("nvme", "host", "nvme", "device"), {}),
}


def job_of(name, work, nvme):
    _, spec, micro, accumulation, homes, more = JOBS[name]
    job = {
        "model": dict(spec), "run": {"dir": os.path.join(work, "run"), "seed": 1, "commit_every": 0},
        "device": {"backend": "cpu"},
        "tiers": {"device": {"budget": "3GiB"}, "host": {"budget": "4GiB"},
                  "nvme": [{"path": os.path.join(nvme, "slabs"), "budget": "8GiB"}], "place": homes},
        "train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 1.0, "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    }
    for path, value in more.items():
        block = job
        for key in path.split(".")[:-1]:
            block = block.setdefault(key, {})
        block[path.split(".")[-1]] = value
    return job


def measure(options, path, machine):
    command = [options.sluice, "profile", path, "--machine", machine, "--json", "--no-advice", "--quiet"]
    if options.steps:
        command += ["--steps", str(options.steps)]
    return json.loads(run(command))


def compare(found, within):
    """Returns the row of a job, and the reasons why it fails."""
    ratio = found["predicted_step_seconds"] / found["step_seconds"]
    lanes = tuple(found[which]["resource"] for which in ("predicted_binding", "binding"))
    planned, made = found["planned_peak_bytes"], found["peak_bytes"]
    why = []
    if not 1 - within / 100 <= ratio <= 1 + within / 100:
        why.append("step")
    if lanes[0] != lanes[1]:
        why.append("resource")
    if any(planned[tier] != made[tier] for tier in TIERS):
        why.append("bytes")
    return ratio, lanes, planned, made, why


def lane_table(found):
    for lane, figures in found["lanes"].items():
        if figures["predicted_busy_seconds"] or figures["busy_seconds"]:
            print("    %-8s %9.3f MB  busy predicted %8.4f measured %8.4f s" %
                  (lane, figures["bytes"] * 1e-6, figures["predicted_busy_seconds"],
                   figures["busy_seconds"]))


def print_row(name, found, again, within):
    """again: the step that the machine predicts when it is measured after the job, or None. Returns the reasons why the
    job fails, and the error of the prediction, or None if the machine moved."""
    ratio, lanes, planned, made, why = compare(found, within)
    peaks = ", ".join("%d" % made[tier] + ("" if made[tier] == planned[tier] else
                                           " (planned %d)" % planned[tier]) for tier in TIERS)
    moved = again and abs(again / found["predicted_step_seconds"] - 1) > MOVED
    if moved:
        why = [reason for reason in why if reason == "bytes"]
    print("%-17s %8.3fs %9s %8.3fs (%8.3f..%7.3f) %6.2f  %-8s %-8s %s%s%s" %
          (name, found["predicted_step_seconds"], "%.3fs" % again if again else "-", found["step_seconds"],
           found["fastest_step_seconds"], found["slowest_step_seconds"], ratio, lanes[0],
           lanes[1], peaks, "   moved" if moved else "", "   <- " + ", ".join(why) if why else ""))
    return why, None if moved else abs(ratio - 1)


def table(options, work):
    failed, errors, machine = [], [], options.machine and os.path.abspath(options.machine)
    print("%-17s %9s %9s %9s %19s %6s  %-8s %-8s %s" %
          ("job", "predicted", "after", "measured", "(fastest..slowest)", "ratio", "binds", "measured",
           "peak bytes: device, host, nvme"))
    machine = machine or measured_machine(options.sluice, work)
    for name in options.jobs or JOBS:
        job, again = job_of(name, work, work), None
        found = measure(options, write_job(work, name, job), machine)
        if options.probe_each:
            machine = measured_machine(options.sluice, work)
            again = plan(options.sluice, work, job, machine)["step_seconds"]
        why, error = print_row(name, found, again, options.within)
        if options.lanes:
            lane_table(found)
        sys.stdout.flush()
        if error is not None:
            errors.append(error)
        if why:
            failed.append(name)
    if errors:
        print("%d jobs count: median error %.1f%%, worst %.1f%%" %
              (len(errors), 100 * statistics.median(errors), 100 * max(errors)))
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="of " + ", ".join(JOBS))
    parser.add_argument("--sluice", default=SLUICE)
    parser.add_argument("--machine", help="machine.json; default: measured now, in under 30 s; not with --probe-each")
    parser.add_argument("--probe-each", action="store_true",
                        help="measure the machine before and after each job: it can change by the minute")
    parser.add_argument("--dir", default=".", help="on the drive to use")
    parser.add_argument("--steps", type=int, help="default: half a minute of them, 3 to 20")
    parser.add_argument("--within", type=float, default=15, help="percent; default 15")
    parser.add_argument("--lanes", action="store_true", help="busy time of each lane as well")
    options = parser.parse_args()
    if options.machine and options.probe_each:
        parser.error("--probe-each measures the machine; leave --machine out")
    for name in options.jobs:
        if name not in JOBS:
            parser.error("%s is none of the jobs %s" % (name, ", ".join(JOBS)))
    with scratch("predict.", options.dir) as work:
        failed = table(options, work)
    print("beyond %g%%, or another resource or byte: %s" % (options.within, ", ".join(failed) or "none"))
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main_of(main)
