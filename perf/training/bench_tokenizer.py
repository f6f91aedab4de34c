#!/usr/bin/env python3
"""Tokenizing: MB/s of text. The limit only splits the same text into words, by PCRE2.

    perf/training/bench_tokenizer.py [--quick] [--csv FILE] [--side FILE] TEXT [TOKENIZER [THREADS]]

TEXT is a file of UTF-8; only its first 32 MiB are used (--quick: 4 MiB). TOKENIZER is a tokenizer.json or its folder.
Without it, a byte-level BPE of 8192 merges with GPT-2's pattern is trained on the beginning of TEXT
(make_tokenizer.py).

The limit is the first task of every such tokenizer: to find the pattern's matches in the text, by PCRE2 with its
compiler. There are three figures:
  - documents of 64 KiB on one thread; words seen before are cached
  - the same with every word new: each document has a newly opened tokenizer
  - a file as `sluice data tokenize` processes it, on THREADS cores (default: all); its limit splits on the same number
    of cores
Before the timing, ids are decoded and compared with the text.
"""

import argparse
import contextlib
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from make_tokenizer import make
from measure import Side, Summary, Table, count_of, main_of, needs, scratch

WORKS = ("one", "split", "all", "split-all", "anew")


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n")[2].strip())
    parser.add_argument("text")
    parser.add_argument("tokenizer", nargs="?")
    parser.add_argument("threads", nargs="?", type=count_of(1), default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--csv")
    parser.add_argument("--side", default="build/release/perf/bench_side")
    options = parser.parse_args()
    needs(options.side)
    with scratch("bench-tokenizer.", "/tmp") as work, contextlib.ExitStack() as ending:
        text = os.path.join(work, "text")
        with open(options.text, "rb") as file, open(text, "wb") as out:
            lines = file.read((4 if options.quick else 32) << 20)
            out.write(lines[:lines.rfind(b"\n") + 1])
        if not options.tokenizer:
            options.tokenizer = work
            make(work, 8192, text)
        log = os.path.join(work, "log")
        side = ending.enter_context(contextlib.closing(Side(
            [options.side, "tokenize", text, options.tokenizer], log, {"OMP_NUM_THREADS": str(options.threads)})))
        print(side.about)
        seconds, values = {what: [] for what in WORKS}, {}
        for turn in range(-1, 7 if options.quick else 9):
            for what in WORKS:
                took, values[what] = side.do(what)
                if turn >= 0:
                    seconds[what].append(took)
        table, size = Table(options.csv), os.path.getsize(text)
        cores = "%d thread%s" % (options.threads, "" if options.threads == 1 else "s")
        for name, what, limit, moved in (("1 thread", "one", "split", size),
                                         ("1 thread every word new", "anew", "split", values["anew"]),
                                         ("file " + cores, "all", "split-all", size)):
            speeds = Summary([moved * 1e-6 / took for took in seconds[what]])
            splits = Summary([size * 1e-6 / took for took in seconds[limit]])
            table.add("tokenizer " + name, speeds.median, "MB/s", splits.median, speeds.spread)


main_of(main)
