#!/usr/bin/env python3
"""How the time of a step grows with the model, the micro-batches, the sequence and the ranks, measured and simulated.

    perf/training/growth.py [--quick] [--machine FILE] [--csv FILE] [--dir DIRECTORY] [--steps N] [SWEEP...]

Sweeps: layers, width, micro-batches, sequence, ranks. Each changes one figure of a small job of GPT-2's shape in bf16, in
memory and with every state on the drive that holds DIRECTORY. For each point it prints the measured seconds of a step
(median of a few), the simulated seconds (`sluice plan` with the given machine.json, or with one that `sluice probe`
measures first), their ratio, and two exponents, measured and simulated: the growth of time with the swept figure since
the previous point. 1 means proportional, 0 means no growth.

Ranks are processes on this machine that share its cores. The whole batch stays the same and each rank has its part, so
the time of a step would be constant if the exchange cost nothing. The simulator gives each rank a share of the cores'
measured rates, in proportion to its threads. Measured steps of ranks are shorter than that, so the line also has the
times that a rank computed and exchanged. The sweep needs mpirun; without it, it is listed as absent.
Lines of CSV: name,measured seconds,s,simulated seconds,measured over simulated,spread.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from measure import (SLUICE, Summary, Table, count_of, gpt2, job_of, main_of, measured_machine, needs, place, plan, run,
                     scratch, train, write_job, write_tokens)

HOMES = {"memory": (place("device"), ("2GiB", "1GiB")), "nvme": (place("nvme"), ("192MiB", "192MiB"))}
VOCAB = 8192


def small_job(work, where, layers=6, width=384, sequence=256, micro=2, accumulation=4):
    homes, budgets = HOMES[where]
    return job_of(work, gpt2(layers, width, sequence, VOCAB), micro, accumulation, homes, budgets,
                  more={"tiers.place.inner_activations": "recompute"})


def profile(options, work, job):
    path = write_job(work, "job", job)
    found = json.loads(run([options.sluice, "profile", path, "--machine", options.machine, "--json", "--no-advice",
                            "--quiet", "--steps", str(options.steps)]))
    spread = (found["slowest_step_seconds"] - found["fastest_step_seconds"]) / (2 * found["step_seconds"])
    return found["step_seconds"], found["predicted_step_seconds"], spread


def ranked(options, work, job, ranks):
    """As profile, with the times that rank 0 computed and exchanged."""
    job["zero_optimization"] = {"stage": 3}
    planned = plan(options.sluice, work, job, options.machine, ranks)
    lines = train(options.sluice, work, job, options.steps + 2, ranks=ranks)
    seconds = Summary([line["seconds"] for line in lines])
    parts = []
    for lane, word in (("compute", "computing"), ("comm", "exchanging")):
        simulated = planned["lanes"][lane]["busy_seconds"]
        measured = statistics.median(line["lanes"][lane]["busy_seconds"] for line in lines)
        parts.append("%s %.3f s, simulated %.3f" % (word, measured, simulated))
    return seconds.median, planned["step_seconds"], seconds.spread, "; ".join(parts)


def points_of(options, sweep):
    """Returns pairs: the figure and its change of the job."""
    short = options.quick
    if sweep == "layers":
        return [(n, {"layers": n}) for n in ((2, 4, 8) if short else (2, 4, 8, 16))]
    if sweep == "width":
        return [(n, {"width": n}) for n in ((128, 256) if short else (192, 384, 768))]
    if sweep == "micro-batches":
        return [(n, {"accumulation": n}) for n in ((1, 4) if short else (1, 2, 4, 8, 16))]
    if sweep == "sequence":
        return [(n, {"sequence": n}) for n in ((128, 256) if short else (128, 256, 512, 1024))]
    return [(n, {}) for n in ((1, 2) if short else (1, 2, 4))]


def exponent(points, column):
    if len(points) < 2:
        return "     "
    (x0, x1), (y0, y1) = ((points[-2][0], points[-1][0]), (points[-2][column], points[-1][column]))
    return "%5.2f" % (math.log(y1 / y0) / math.log(x1 / x0))


def sweep_one(options, table, work, sweep, where):
    points = []
    for figure, changes in points_of(options, sweep):
        if sweep == "ranks":
            job = small_job(work, where, micro=2, accumulation=8 // figure)
            measured, simulated, spread, parts = ranked(options, work, job, figure)
        else:
            measured, simulated, spread = profile(options, work, small_job(work, where, **changes))
            parts = ""
        points.append((figure, measured, simulated))
        table.add("growth %s %d %s" % (sweep, figure, where), measured, "s", simulated, spread,
                  "exponent %s, simulated %s  %s" % (exponent(points, 1), exponent(points, 2), parts))


SWEEPS = ("layers", "width", "micro-batches", "sequence", "ranks")


def main():
    parser = argparse.ArgumentParser(description="How the time of a step grows", epilog=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help="of " + ", ".join(SWEEPS))
    parser.add_argument("--quick", action="store_true", help="fewer points")
    parser.add_argument("--machine", help="machine.json; default: measured now, in under 30 s")
    parser.add_argument("--csv")
    parser.add_argument("--dir", default=".", help="on the drive to use")
    parser.add_argument("--sluice", default=SLUICE)
    parser.add_argument("--steps", type=count_of(1), default=5, help="measured steps")
    options = parser.parse_args()
    for name in options.sweeps:
        if name not in SWEEPS:
            parser.error("%s is none of the sweeps %s" % (name, ", ".join(SWEEPS)))
    needs(options.sluice)
    table = Table(options.csv, limit_word="simulated")
    with scratch("growth.", options.dir) as work:
        write_tokens(os.path.join(work, "tokens"), vocab=VOCAB)
        if not options.machine:
            options.machine = measured_machine(options.sluice, work)
        options.machine = os.path.abspath(options.machine)
        for sweep in options.sweeps or SWEEPS:
            if sweep == "ranks" and not shutil.which("mpirun"):
                table.absent("growth ranks", "mpirun is not installed")
                continue
            for where in HOMES:
                sweep_one(options, table, work, sweep, where)


if __name__ == "__main__":
    main_of(main)
