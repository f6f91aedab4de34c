#!/usr/bin/env python3
"""The peers of perf/peers/compare.py that are Python packages. They do one piece of work for each line that they read.

    perf/peers/peers.py aio FILE BYTES           read | write   DeepSpeed's asynchronous I/O with the best settings of a short search
    perf/peers/peers.py tokenize TEXT FILE       one | all      the tokenizers library on one thread or on all

The first answer is "ready" with a description, then "seconds value" for each line, as in perf/peers/bench_side.c. The exit
status is 3, with the reason, if the package is not installed or cannot be built.
"""

import os
import sys
import time


def absent(why):
    print("absent %s" % why, flush=True)
    sys.exit(3)


def answer(begin, value):
    print("%.9f %.9g" % (time.perf_counter() - begin, value), flush=True)


def aio(path, size):
    try:
        import torch
        from deepspeed.ops.op_builder import AsyncIOBuilder
        builder = AsyncIOBuilder()
        if not builder.is_compatible():
            absent("DeepSpeed's asynchronous I/O does not build here (libaio-dev?)")
        library = builder.load(verbose=False)
    except Exception as error:
        absent("deepspeed: %s" % str(error).split("\n")[0])
    with open(path, "wb") as out:  # written once before the timing
        piece = os.urandom(1 << 20)
        for _ in range(size >> 20):
            out.write(piece)
        out.flush()
        os.fsync(out.fileno())

    def handle_of(block, depth, threads):
        return library.aio_handle(block, depth, False, True, threads)

    handle = handle_of(1 << 20, 16, 1)
    buffer = handle.new_cpu_locked_tensor(size, torch.empty(0, dtype=torch.uint8))

    def move(chosen, kind):
        begin = time.perf_counter()
        done = (chosen.async_pread if kind == "read" else chosen.async_pwrite)(buffer, path, 0)
        if done != 0 or chosen.wait() != 1:
            sys.exit("the transfer failed")
        return time.perf_counter() - begin

    best = {}
    for kind in ("read", "write"):
        tried = []
        for block in (256 << 10, 1 << 20, 8 << 20):
            for depth in (8, 32):
                for threads in (1, 2, 4):
                    if size % (block * threads):
                        continue
                    chosen = handle_of(block, depth, threads)
                    tried.append((min(move(chosen, kind) for _ in range(2)), block, depth, threads))
        best[kind] = min(tried)
    handles = {kind: handle_of(*best[kind][1:]) for kind in best}
    print("ready " + ", ".join("%s blocks of %d KiB, depth %d, threads %d" % (kind, b >> 10, d, t)
                               for kind, (_, b, d, t) in best.items()), flush=True)
    for line in sys.stdin:
        kind = line.strip()
        print("%.9f %d" % (move(handles[kind], kind), size), flush=True)
    os.unlink(path)


def tokenize(path, name):
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    try:
        import tokenizers
    except ImportError as error:
        absent(str(error))
    words = tokenizers.Tokenizer.from_file(name)
    with open(path, "rb") as file:
        text = file.read()
    pieces, at = [], 0
    while at < len(text):  # cut as in bench_side
        end = min(at + (64 << 10), len(text))
        newline = text.find(b"\n", end)
        end = newline + 1 if newline >= 0 else len(text)
        pieces.append(text[at:end].decode("utf-8"))
        at = end
    print("ready tokenizers %s" % tokenizers.__version__, flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        if line.strip() == "one":
            count = sum(len(words.encode(piece, add_special_tokens=False).ids) for piece in pieces)
        else:
            count = sum(len(found.ids) for found in words.encode_batch_fast(pieces, add_special_tokens=False))
        answer(begin, count)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("aio", "tokenize"):
        sys.exit(__doc__)
    if sys.argv[1] == "aio":
        aio(sys.argv[2], int(sys.argv[3]))
    else:
        tokenize(sys.argv[2], sys.argv[3])
