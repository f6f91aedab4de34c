#!/usr/bin/env python3
"""The speed at which tiers/io moves bytes between huge-page memory and the slab, against the best of fio on the same files.

    perf/drives/bench_nvme.py [options] [DIRECTORY[,DIRECTORY...] [SLAB_BYTES [auto|uring|pool]]]      --help

Reads, writes and both at once, over block size, queue depth and registration. All runs are interleaved in rounds, each
of which starts at another entry, so a drive that becomes slower affects both sides. fio uses one thread, io_uring,
O_DIRECT and buffers on huge pages. Both sides run with and without registered buffers and files, and with as many
blocks of memory as are in flight. This number matters: if a host copies into the guest's memory, blocks in its caches
are up to 1.5 times as fast, as long as the guest's own cores do not touch them.

Two further sides take no part in the ratio:
  lanes    Sluice as in a step: requests of 4 MiB, cut into transfers, that use 256 MiB of memory
  filled   fio that writes into each block before it submits it, as a program does with data that it produces

It prints the median, the extremes, CPU time and percentiles of transfers. For each mode it prints the ratio of Sluice's
best to fio's best, with the extremes of the ratios of single rounds. --csv keeps the best of each mode beside the best
of fio's. Several directories are several drives.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from measure import Side, Summary, Table, count_of, fail, main_of, needs

MODES = ("read", "write", "mixed")
GRID = ["%sx%d" % (block, depth) for block in ("64KiB", "256KiB", "1MiB", "4MiB") for depth in (1, 4, 8, 16)]
FINALISTS = 2  # of each side
SWEEP_ROUNDS, SWEEP_SECONDS = 2, 0.06
FIO_SECONDS = 0.15  # longer, since fio's start and end take time
WAYS = ("read", "write")


def has_fio():
    return shutil.which("fio") is not None


def parts_of(setting):
    """"4MiBx8" is (4194304, 8)."""
    found = re.fullmatch(r"([1-9][0-9]*)(KiB|MiB)x([1-9][0-9]*)", setting)
    if not found:
        raise argparse.ArgumentTypeError("%s: want block and depth, as 4MiBx4" % setting)
    return int(found.group(1)) << {"KiB": 10, "MiB": 20}[found.group(2)], int(found.group(3))


class Drives:
    """A slab on the drives, and runs on it: our own by drive_side.c, and fio's."""

    def __init__(self, program, where, size, log, backend="auto"):
        self.side = Side([program, where, size, backend], log)
        place, self.about = self.side.about.split("\t")
        self.offset, self.size, self.files = place.split(" ", 2)
        self.count = where.count(",") + 1
        self.huge_bytes = 0  # the most of fio's memory on huge pages

    def close(self):
        self.side.close()

    def run(self, by, mode, setting, seconds, registered=True, read_percent=50):
        """Returns [bytes a second, CPU seconds a byte] and, for reads and writes, the seconds of a transfer: median, 95%, 99%,
        longest. read_percent concerns only fio; Sluice has the same number of requests each way."""
        if by in ("fio", "filled"):
            return self.run_fio(mode, setting, seconds, registered, read_percent, by == "filled")
        line = "%s %s %s %g%s" % (by, mode, setting, seconds, "" if registered else " unregistered")
        return self.side.answer(line, 11)[1:]

    def run_fio(self, mode, setting, seconds, registered, read_percent, fills):
        block, depth = parts_of(setting)
        # Mixed: each direction has `depth` requests in flight, and they share fio's only queue.
        depth *= (2 if mode == "mixed" else 1) * self.count
        command = ["fio", "--name=sluice", "--direct=1", "--ioengine=io_uring", "--time_based", "--output-format=json",
                   "--percentile_list=50:95:99", "--invalidate=0", "--thread",
                   "--scramble_buffers=0",  # scrambling would change the data to write, on the CPU
                   "--iomem_align=2097152", "--filename=" + self.files, "--offset=" + self.offset, "--size=" + self.size,
                   "--bs=%d" % block, "--iodepth=%d" % depth, "--rw=" + {"mixed": "rw"}.get(mode, mode),
                   "--rwmixread=%d" % read_percent, "--runtime=%.0fms" % (1000 * seconds)]
        command += ["--fixedbufs", "--registerfiles"] * registered + ["--zero_buffers", "--refill_buffers"] * fills
        # Buffers on huge pages, like ours. (--iomem=mmap gets 4 KiB pages if the system gives huge pages only to
        # programs that ask, and mmaphuge needs hugetlbfs.) glibc before 2.35 does not support this.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                   text=True, env=dict(os.environ, GLIBC_TUNABLES="glibc.malloc.hugetlb=1"))
        while True:
            try:
                said = process.communicate(timeout=0.05)[0]
                break
            except subprocess.TimeoutExpired:
                self.huge_bytes = max(self.huge_bytes, huge_bytes_of(process.pid))
        try:
            job = json.JSONDecoder().raw_decode(said, said.index("{"))[0]["jobs"][0]  # warnings may come first
            rate = sum(job[way]["bw_bytes"] for way in WAYS)
            if job["error"] or not rate:
                raise ValueError
        except (ValueError, LookupError):
            fail("fio gave no figure: %s" % (said[:60] or "it said nothing"))
        times = []
        for way in WAYS:
            late = job[way]["clat_ns"]
            shares = late.get("percentile", {})
            times += [shares.get("%s.000000" % share, 0) * 1e-9 for share in (50, 95, 99)] + [late["max"] * 1e-9]
        return [rate, (job["usr_cpu"] + job["sys_cpu"]) / 100 / rate] + times


def huge_bytes_of(pid):
    """Returns 0 if the system does not report it."""
    with contextlib.suppress(OSError):
        with open("/proc/%d/smaps_rollup" % pid) as lines:
            for line in lines:
                if line.startswith("AnonHugePages:"):
                    return int(line.split()[1]) << 10
    return 0


class Entry:
    """One way of moving bytes, and its runs."""

    def __init__(self, by, mode, setting, registered=True):
        self.by, self.mode, self.setting, self.registered = by, mode, setting, registered
        self.runs = []

    def rates(self):
        return Summary([run[0] for run in self.runs])

    def columns(self):
        """Returns CPU seconds a byte, in the mean, and the times of transfers: in the mean, and the longest of all."""
        means = [sum(column) / len(self.runs) for column in zip(*self.runs)]
        means[5], means[9] = (max(run[at] for run in self.runs) for at in (5, 9))
        return means[1:]

    def show(self):
        rates, (cpu, *times) = self.rates(), self.columns()
        block, depth = parts_of(self.setting)
        line = "%-6s %-6s %5dKiB %5d  %-3s %6.2f %6.2f -%5.2f %8.4f" % (
            self.mode, self.by, block >> 10, depth, "yes" if self.registered else "no", rates.median * 1e-9,
            rates.lowest * 1e-9, rates.highest * 1e-9, cpu * 1e9)
        for name, way in (("r", times[:4]), ("w", times[4:])):
            if way[3] > 0:
                line += "  %s %5.2f %5.2f %6.2f %6.2f" % (name, *(1e3 * seconds for seconds in way))
        print(line, flush=True)

    def row(self, stage):
        rates = self.rates()
        block, depth = parts_of(self.setting)
        return "%s,%s,%s,%d,%d,%d,%d,%.0f,%.0f,%.0f,%s\n" % (
            stage, self.by, self.mode, block, depth, self.registered, len(self.runs), rates.median, rates.lowest,
            rates.highest, ",".join("%.4g" % value for value in self.columns()))


class Bench:
    def __init__(self, options, drives, table, rows):
        self.options, self.drives, self.table, self.rows = options, drives, table, rows
        self.has_fio = has_fio() and not options.no_fio

    def rounds(self, stage, entries, count, ours, fio):
        """Runs all entries once per round. Each round begins with another entry."""
        for turn in range(count):
            for i in range(len(entries)):
                entry = entries[(i + turn * 5) % len(entries)]
                seconds = fio if entry.by in ("fio", "filled") else ours
                entry.runs.append(self.drives.run(entry.by, entry.mode, entry.setting, seconds, entry.registered))
        if self.rows:
            self.rows.writelines(entry.row(stage) for entry in entries)

    def best_of(self, entries):
        return [entry.setting for entry in sorted(entries, key=lambda entry: -entry.rates().median)[:FINALISTS]]

    def sweep(self, mode):
        """Tries all settings of the grid briefly. Returns the best of ours and of fio's."""
        ours = [Entry("sluice", mode, setting) for setting in GRID]
        theirs = [Entry("fio", mode, setting) for setting in GRID * self.has_fio]
        self.rounds("sweep", ours, SWEEP_ROUNDS, SWEEP_SECONDS, 0)
        self.rounds("sweep", theirs, 1, 0, FIO_SECONDS)
        return self.best_of(ours), self.best_of(theirs)

    def measure(self, mode):
        settings = self.options.settings
        ours, theirs = (settings, settings * self.has_fio) if settings else self.sweep(mode)
        entries = [Entry("sluice", mode, setting, registered) for setting in ours for registered in (True, False)]
        entries += [Entry("fio", mode, setting, registered) for setting in theirs for registered in (True, False)]
        entries += [Entry("filled", mode, setting) for setting in theirs if mode != "read"]
        entries += [Entry("lanes", mode, setting) for setting in ours]
        self.rounds("final", entries, self.options.rounds, self.options.seconds, self.options.seconds)
        for entry in entries:
            entry.show()
        best = {by: max((entry for entry in entries if entry.by == by), key=lambda entry: entry.rates().median, default=None)
                for by in ("sluice", "fio")}
        got, limit = best["sluice"].rates(), best["fio"].rates().median * 1e-9 if best["fio"] else None
        self.table.add("nvme " + mode, got.median * 1e-9, "GB/s", limit, got.spread)
        if best["fio"]:
            ratios = [run[0] / other[0] for run, other in zip(best["sluice"].runs, best["fio"].runs)]
            print("%-6s ratio of single rounds, sluice / best of fio: %.3f to %.3f" % (mode, min(ratios), max(ratios)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("where", nargs="?", default=".", metavar="DIRECTORY[,DIRECTORY...]")
    parser.add_argument("size", nargs="?", default="512MiB", metavar="SLAB_BYTES")
    parser.add_argument("backend", nargs="?", default="auto", choices=("auto", "uring", "pool"))
    parser.add_argument("--modes", default=",".join(MODES), help="some of read,write,mixed (default: all)")
    parser.add_argument("--settings", default="", help="such as 4MiBx4,1MiBx16: block and depth each way. By default all settings of "
                        "a grid are tried briefly, and the best two of each side go on")
    parser.add_argument("--rounds", type=count_of(1), default=7, help="of each setting (7)")
    parser.add_argument("--seconds", type=float, help="of each run (0.25)")
    parser.add_argument("--rows", help="writes all rows as CSV to this file")
    parser.add_argument("--no-fio", action="store_true", help="measures only Sluice")
    parser.add_argument("--csv", help="appends a line for each mode")
    parser.add_argument("--quick", action="store_true", help="7 rounds of 0.1 s with blocks of 1 MiB, 16 in flight")
    parser.add_argument("--side", default="build/release/perf/drive_side")
    options = parser.parse_args()
    options.settings = [word for word in (options.settings or ("1MiBx16" if options.quick else "")).split(",") if word]
    options.seconds = options.seconds or (0.1 if options.quick else 0.25)
    try:
        for setting in options.settings:
            parts_of(setting)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    modes = options.modes.split(",")
    if not set(modes) <= set(MODES):
        parser.error("--modes wants some of read,write,mixed")
    needs(options.side)
    with contextlib.ExitStack() as ending:
        log = ending.enter_context(tempfile.NamedTemporaryFile("w")).name
        drives = ending.enter_context(contextlib.closing(
            Drives(options.side, options.where, options.size, log, options.backend)))
        rows = ending.enter_context(open(options.rows, "w")) if options.rows else None
        bench = Bench(options, drives, Table(options.csv), rows)
        print(drives.about + ("" if bench.has_fio or options.no_fio else "\nfio is not installed: ours alone"))
        print("%-6s %-6s %8s %5s %4s %6s %13s %8s  %s" % ("mode", "by", "block", "depth", "reg.", "GB/s", "min -  max", "CPU s/GB",
                                                         "transfers, ms: median, 95%, 99%, longest"))
        if rows:
            rows.write("stage,by,mode,block_bytes,depth,registered,runs,median,min,max,cpu_s_per_byte,read_p50,read_p95,"
                       "read_p99,read_max,write_p50,write_p95,write_p99,write_max\n")
        for mode in modes:
            bench.measure(mode)
        if bench.has_fio:
            print("of fio's memory %.1f MiB at most was on huge pages" % (drives.huge_bytes / 2**20))


if __name__ == "__main__":
    main_of(main)
