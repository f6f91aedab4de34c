#!/usr/bin/env python3
"""Compares Sluice with the peers that are installed here, in turns, on one machine.

    perf/peers/compare.py [--quick] [--out DIR] [--drive DIR] [--bin DIR] [--python FILE] [--llmc DIR] [--text FILE] [PEER...]

Peers:
  pytorch      trains GPT-2 124M: bf16 (autocast) and fp32; micro-batch x tokens of 4x256, 16x256 and 4x1024; fused AdamW,
               clipping at 1.0, the same tokens in the same order. Modes: eager; kept: eager, with a C library that keeps
               freed memory and asks for huge pages, which makes PyTorch much faster; compiled: torch.compile, and kept.
               --shapes, --dtypes and --modes select a part; everything takes an hour on 2 cores. --model mixture trains a
               mixture of experts of 280M parameters in place of GPT-2, PyTorch's side by transformers' loop over experts
  module       one module of PyTorch (GPT-2 124M, fp32; --model hf: transformers'), trained by sluice.torch.Engine beside
               PyTorch's own loop in memory, FSDP2 offloaded to the CPU, and DeepSpeed's ZeRO-3 on the CPU and on the drive;
               --shapes, default 4x512 and 1x128. Each line has the peak resident memory of both. 20 minutes on 2 cores
  optimizer    sluice.torch.AdamW with its state in host memory or on the drive, over 128 Mi fp32 parameters, beside
               torch's fused AdamW, DeepSpeed's CPUAdam and torchao's CPUOffloadOptimizer; for the drive also GB/s
  adam         optimizer steps: perf/peers/compare_adam.py
  deepspeed    whole steps of GPT-2 124M in bf16 by DeepSpeed's ZeRO-3 with parameters and optimizer on the drive, against ours
               with all states on the drive: steps of 4x1024x2 tokens, where computing binds, and of 1x512, where the
               update does. Each line has the peak resident memory and the bytes written a step of both. Needs 12 GiB of
               memory and 6 GB of disk; half an hour on 2 cores
  aio          DeepSpeed's asynchronous I/O (it builds its library at first use and needs libaio-dev): reads and writes of
               the same number of bytes on the same file system
  tokenizers   the same text with the same tokenizer.json, on one thread and on all
  llmc         llm.c's CPU program in fp32, from the checkout that --llmc names. It is built here with its Makefile's flags
               and has random weights and tokens. B, T and the number of steps are written into a copy of its
               train_gpt2.c. It runs each T of --shapes once, with the largest micro-batch that memory and --llmc-batch
               allow. 20 minutes on 2 cores

Every line has our median and the peer's in the same unit. The ratio is ours / the peer's; above 1 Sluice is faster. A
peer that is not installed is listed as absent. --python names the interpreter that has the packages (default: python3).
Lines of CSV go to DIR/compare.csv (default: runs/perf/ with date and time), and the programs' logs go beside it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from measure import (SHAPES, VOCAB, Absent, Side, Summary, Table, by_turns, count_of, dtypes_of, fail, gpt2, job_of,
                     memory_gib, mixture, needs, main_of, place, run, said, scratch, shapes_of, write_job, write_tokens)


def beside(table, name, ours, theirs, amount, unit, note=""):
    """Adds a line with amount / seconds of both sides."""
    mine, other = Summary(ours), Summary(theirs)
    table.add(name, amount / mine.median, unit, amount / other.median, mine.spread,
              ("peer +-%.1f%%  " % (100 * other.spread)) + note)


def model_of(options, length):
    if options.model == "mixture":
        return mixture(2, 256, length, 8192) if options.quick else mixture(tokens=length)
    return gpt2(4, 256, length, 8192) if options.quick else gpt2(tokens=length)


def our_training(options, work, batch, length, dtype):
    job = job_of(work, model_of(options, length), micro=batch, bf16=dtype == "bf16",
                 more={"tiers.place.inner_activations": "device", "data.shuffle": "none", "run.steps": 10000,
                       "run.dir": os.path.join(work, "run")})
    shutil.rmtree(os.path.join(work, "run"), ignore_errors=True)
    return Side([options.side, "train", write_job(work, "job", job)], os.path.join(options.out, "sluice-train.log"))


MODES = ("eager", "kept", "compiled")

# Settings of the C library for a program that allocates large blocks again and again.
KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(64 << 20),
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def pytorch(options, table, work):
    model = model_of(options, 0)
    for batch, length in options.shapes:
        for dtype in options.dtypes:
            for mode in options.modes:
                name = "pytorch %s: train %s %s B=%d T=%d" % (mode, options.name, dtype, batch, length)
                command = [options.python, "perf/peers/pytorch_train.py", "--tokens", os.path.join(work, "tokens"), "--dtype",
                           dtype, "--length", str(length), "--batch", str(batch), "--layers", str(model["num_layers"]), "--width",
                           str(model["hidden_size"]), "--vocab", str(model["vocab_size"]), "--model", options.model]
                sides = {}
                try:
                    sides["peer"] = Side(command + (["--compile"] if mode == "compiled" else []),
                                         os.path.join(options.out, "pytorch.log"), KEPT if mode != "eager" else None)
                    sides["ours"] = our_training(options, work, batch, length, dtype)
                    seconds, losses = by_turns(sides, options.rounds, options.warm)
                finally:
                    for side in sides.values():
                        side.close()
                beside(table, name, seconds["ours"], seconds["peer"], batch * length, "tokens/s",
                       "losses at the end %.3f and %.3f" % (losses["ours"][-1], losses["peer"][-1]))


DEEPSPEED_STEPS = ((4, 1024, 2), (1, 512, 1))  # micro-batch, tokens, micro-batches


def figure_of(side, file, key):
    """A number of /proc/PID/FILE of the side's process."""
    with open("/proc/%d/%s" % (side.process.pid, file)) as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(key + ":"))


def deepspeed(options, table, work):
    """Bytes written are those that the kernel counts for the process, so those to the drive."""
    if memory_gib() < 12:
        raise Absent("needs 12 GiB of memory, %.1f are free" % memory_gib())
    for batch, length, accumulation in ((2, 128, 2), (1, 64, 1)) if options.quick else DEEPSPEED_STEPS:
        model = model_of(options, length)
        job = job_of(work, model, micro=batch, accumulation=accumulation, homes=place("nvme"), budgets=("2GiB", "1GiB"),
                     more={"data.shuffle": "none", "run.steps": 1 << 20, "tiers.place.activations": "host"})
        folder = os.path.join(work, "zero3")
        os.makedirs(folder, exist_ok=True)
        command = [options.python, "perf/peers/pytorch_train.py", "--tokens", os.path.join(work, "tokens"), "--length",
                   str(length), "--batch", str(batch), "--accumulation", str(accumulation), "--layers",
                   str(model["num_layers"]), "--width", str(model["hidden_size"]), "--vocab", str(model["vocab_size"]),
                   "--by", "zero3-nvme", "--folder", folder]
        sides = {}
        try:
            sides["peer"] = Side(command, os.path.join(options.out, "deepspeed.log"))
            sides["ours"] = Side([options.side, "train", write_job(work, "job", job)],
                                 os.path.join(options.out, "sluice-nvme.log"))
            by_turns(sides, options.warm, warm=0)
            before = {name: figure_of(side, "io", "write_bytes") for name, side in sides.items()}
            seconds, losses = by_turns(sides, options.rounds, warm=0, swaps=True)
            written = {name: (figure_of(side, "io", "write_bytes") - before[name]) / options.rounds * 1e-9
                       for name, side in sides.items()}
            memory = {name: figure_of(side, "status", "VmHWM") / 2**20 for name, side in sides.items()}
        finally:
            for side in sides.values():
                side.close()
            for name in ("zero3", "slabs", "run"):
                shutil.rmtree(os.path.join(work, name), ignore_errors=True)
        beside(table, "deepspeed ZeRO-3 on nvme: train %s bf16 B=%dx%d T=%d" % (options.name, batch, accumulation, length),
               seconds["ours"], seconds["peer"], batch * accumulation * length, "tokens/s",
               "peak memory %.2f and %.2f GiB; written a step %.2f and %.2f GB; losses at the end %.3f and %.3f" %
               (memory["ours"], memory["peer"], written["ours"], written["peer"], losses["ours"][-1], losses["peer"][-1]))


def with_package(options, work):
    """Environment in which the peers' Python finds the package of the build folder."""
    site = os.path.join(os.path.abspath(work), "site")
    extension = os.path.abspath(os.path.join(options.bin, "src/python/_native.abi3.so"))
    needs(extension)
    if not os.path.exists(site):
        shutil.copytree("src/python/sluice", os.path.join(site, "sluice"), ignore=shutil.ignore_patterns("__pycache__"))
        os.symlink(extension, os.path.join(site, "sluice", "_native.abi3.so"))
    return {"PYTHONPATH": site, "SLUICE_COMMAND": os.path.abspath(options.sluice)}


def pair(options, work, commands, env, rounds, warm):
    """Runs two commands, "ours" and "peer", by turns; returns their seconds, values and peak resident GiB."""
    sides = {}
    try:
        for name, command in commands.items():
            sides[name] = Side(command, os.path.join(options.out, "%s.log" % name), env)
        seconds, values = by_turns(sides, rounds, warm, swaps=True)
        memory = {name: figure_of(side, "status", "VmHWM") / 2**20 for name, side in sides.items()}
    finally:
        for side in sides.values():
            side.close()
        for name in ("ours", "peer"):
            shutil.rmtree(os.path.join(work, name), ignore_errors=True)
    return seconds, values, memory


MODULE_PAIRS = (("engine", "torch"), ("engine-nvme", "torch"), ("engine-host", "fsdp2"), ("engine-host", "zero3-cpu"),
                ("engine-nvme", "zero3-nvme"))


def module(options, table, work):
    model, env = model_of(options, 0), with_package(options, work)
    for batch, length in shapes_of(options.given_shapes or ("2x128" if options.quick else "4x512,1x128")):
        for mine, other in MODULE_PAIRS:
            commands = {}
            for name, by in (("peer", other), ("ours", mine)):
                folder = os.path.abspath(os.path.join(work, name))
                os.makedirs(folder, exist_ok=True)
                commands[name] = [
                    options.python, "perf/peers/pytorch_train.py", "--tokens", os.path.join(work, "tokens"), "--dtype", "fp32",
                    "--length", str(length), "--batch", str(batch), "--layers", str(model["num_layers"]), "--width",
                    str(model["hidden_size"]), "--vocab", str(model["vocab_size"]), "--model", options.model, "--by", by,
                    "--folder", folder]
            line = "module: %s beside %s, %s fp32 B=%d T=%d" % (mine, other, options.name, batch, length)
            try:
                seconds, losses, memory = pair(options, work, commands, env, options.rounds, options.warm)
            except Absent as why:
                table.absent(line, str(why))
                continue
            beside(table, line, seconds["ours"], seconds["peer"], batch * length, "tokens/s",
                   "peak memory %.2f and %.2f GiB; losses at the end %.5f and %.5f" %
                   (memory["ours"], memory["peer"], losses["ours"][-1], losses["peer"][-1]))


OPTIMIZER_PAIRS = (("sluice", "fused"), ("sluice", "deepspeed"), ("sluice", "torchao"), ("sluice-nvme", "fused"))


def optimizer(options, table, work):
    env = with_package(options, work)
    count = (8 if options.quick else 128) << 20
    for mine, other in OPTIMIZER_PAIRS:
        commands = {}
        for name, by in (("peer", other), ("ours", mine)):
            commands[name] = [options.python, "perf/peers/torch_optimizer.py", by, str(count),
                              os.path.abspath(os.path.join(work, name))]
        line = "optimizer: %s beside %s, %d Mi fp32 parameters" % (mine, other, count >> 20)
        try:
            seconds, values, memory = pair(options, work, commands, env, options.rounds, options.warm)
        except Absent as why:
            table.absent(line, str(why))
            continue
        note = "%.3f and %.3f s a billion parameters; peak memory %.2f and %.2f GiB" % (
            Summary(seconds["ours"]).median * 1e9 / count, Summary(seconds["peer"]).median * 1e9 / count, memory["ours"],
            memory["peer"])
        if mine == "sluice-nvme":
            note += "; %.2f GB/s read and written" % (16e-9 * count / Summary(seconds["ours"]).median)
        beside(table, line, seconds["ours"], seconds["peer"], count * 1e-6, "M parameters/s", note)


def needs_torch(options):
    if not shutil.which(options.python):
        raise Absent("%s is not there" % options.python)
    done = subprocess.run([options.python, "-c", "import torch; print(torch.__version__)"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    if done.returncode != 0:
        raise Absent("%s has no torch" % options.python)
    if options.model != "plain" and subprocess.run([options.python, "-c", "import transformers"],
                                                stderr=subprocess.DEVNULL).returncode != 0:
        raise Absent("%s has no transformers" % options.python)
    print("torch %s, model: %s" % (done.stdout.strip(), options.model))


def adam(options, table, work):
    needs_torch(options)
    library = os.path.join(options.bin, "perf/libadam_compared.so")
    if not os.path.exists(library):
        raise Absent("%s is not built" % library)
    csv = os.path.join(options.out, "compare_adam.csv")
    command = [options.python, "perf/peers/compare_adam.py", "--library", library, "--csv", csv]
    command += ["--quick"] if options.quick else []
    print(run(command), end="", flush=True)
    with open(csv) as lines:  # only the lines that have a peer
        table.file.writelines(line for line in lines if line.split(",")[3:4] not in ([], [""], ["limit"]))
    table.file.flush()


def aio(options, table, work):
    size = (64 if options.quick else 256) << 20
    sides = {}
    try:
        sides["peer"] = Side([options.python, "perf/peers/peers.py", "aio", os.path.join(work, "aio"), str(size)],
                             os.path.join(options.out, "aio.log"))
        sides["ours"] = Side([options.side, "io", work, str(size)], os.path.join(options.out, "io.log"))
        print("DeepSpeed: %s" % sides["peer"].about)
        for what in ("read", "write"):
            seconds, _ = by_turns(sides, options.rounds * 3, what=what)
            beside(table, "deepspeed aio: %s %d MiB" % (what, size >> 20), seconds["ours"], seconds["peer"], size * 1e-9,
                   "GB/s")
    finally:
        for side in sides.values():
            side.close()


def tokenizers(options, table, work):
    text, name = options.text, options.tokenizer
    if not text:
        text = os.path.join(work, "text")
        run(["sh", "-c", "find src kernels tiers swap tests README.md -type f \\( -name '*.[ch]' -o -name '*.md' \\) |"
             " LC_ALL=C sort | xargs cat >'%s'" % text])
    if not name:
        run([sys.executable, "perf/training/make_tokenizer.py", work, "8192", text])
        name = os.path.join(work, "tokenizer.json")
    sides = {}
    try:
        sides["peer"] = Side([options.python, "perf/peers/peers.py", "tokenize", text, name],
                             os.path.join(options.out, "tokenizers.log"))
        sides["ours"] = Side([options.side, "tokenize", text, name], os.path.join(options.out, "tokenize.log"))
        for what, words in (("one", "one thread"), ("all", "all cores")):
            seconds, counts = by_turns(sides, options.rounds, warm=1, what=what)
            if what == "one" and counts["ours"] != counts["peer"]:
                fail("the tokenizers disagree: %d tokens here, %d there" % (counts["ours"][0], counts["peer"][0]))
            beside(table, "tokenizers: %s" % words, seconds["ours"], seconds["peer"], os.path.getsize(text) * 1e-6, "MB/s")
    finally:
        for side in sides.values():
            side.close()


# --- llm.c ---

LLMC_HEADER = 256  # int32


def llmc_write(folder):
    """Writes weights and tokens for llm.c: random GPT-2 124M, with the vocabulary padded to 50304."""
    import array
    import random
    layers, width, vocab, padded, length = 12, 768, 50257, 50304, 1024
    draw = random.Random(1)
    block = array.array("f", [draw.gauss(0, 0.02) for _ in range(1 << 16)])
    header = array.array("i", [20240326, 3, length, vocab, layers, 12, width, padded] + [0] * (LLMC_HEADER - 8))

    def weights(out, count):
        while count > 0:
            block[: min(count, len(block))].tofile(out)
            count -= len(block)

    def constant(out, value, count):
        array.array("f", [value] * count).tofile(out)

    with open(os.path.join(folder, "gpt2_124M.bin"), "wb") as out:
        header.tofile(out)
        weights(out, padded * width)
        weights(out, length * width)
        each = layers * width
        for kind, count in ((1, each), (0, each), (2, each * 3 * width), (0, 3 * each), (2, each * width), (0, each),
                            (1, each), (0, each), (2, each * 4 * width), (0, 4 * each), (2, each * 4 * width), (0, each),
                            (1, width), (0, width)):
            if kind == 2:
                weights(out, count)
            else:
                constant(out, float(kind), count)
    data = os.path.join(folder, "dev/data/tinyshakespeare")
    os.makedirs(data)
    count = 1 << 16
    for name in ("train", "val"):
        with open(os.path.join(data, "tiny_shakespeare_%s.bin" % name), "wb") as out:
            array.array("i", [20240520, 1, count] + [0] * (LLMC_HEADER - 3)).tofile(out)
            array.array("H", [draw.randrange(vocab) for _ in range(count)]).tofile(out)


def llmc_build(options, folder, batch, length, steps):
    """Builds a copy of train_gpt2.c with other sizes, and with one validation batch, which is not timed."""
    options.llmc = os.path.abspath(options.llmc)
    with open(os.path.join(options.llmc, "train_gpt2.c")) as source:
        text = source.read()
    for pattern, new in ((r"int B = 4;", "int B = %d;" % batch), (r"int T = 64;", "int T = %d;" % length),
                         (r"step <= 40;", "step < %d;" % steps), (r"val_num_batches = 5;", "val_num_batches = 1;")):
        text, count = re.subn(pattern, new, text)
        if count != 1:
            raise Absent("%s is another version: '%s' is not in it once" % (options.llmc, pattern))
    path = os.path.join(folder, "train_%d.c" % length)
    with open(path, "w") as out:
        out.write(text)
    program = path[:-2]
    run(["gcc", "-Ofast", "-march=native", "-fopenmp", "-DOMP", "-w", "-I", options.llmc, path, "-o", program, "-lm"])
    return program


def llmc(options, table, work):
    if not options.llmc:
        raise Absent("--llmc names no checkout")
    if not os.path.isfile(os.path.join(options.llmc, "train_gpt2.c")):
        raise Absent("%s has no train_gpt2.c" % options.llmc)
    if not shutil.which("gcc"):
        raise Absent("gcc is not installed")
    if options.quick:
        print("llm.c: GPT-2 124M in any case, one step that counts")
    folder = os.path.join(work, "llmc")
    os.mkdir(folder)
    llmc_write(folder)
    full = argparse.Namespace(**dict(vars(options), quick=False))
    for length in sorted({tokens for _, tokens in options.shapes}):
        # Activations and their gradients: attention's T x T twice, about 52 C more per token and block, and logits.
        each = 8 * (length * 12 * (24 * length + 18 * 768) + 2 * length * 50304)
        batch = min(options.llmc_batch, int((memory_gib() - 6) * 2**30 / each))
        if batch < 1:
            table.absent("llm.c: T=%d" % length, "too little memory is free")
            continue
        steps = 2 if options.quick or length > 512 else 3
        program = llmc_build(options, folder, batch, length, steps)
        ours, theirs = {"bf16": [], "fp32": []}, []
        for _ in range(options.llmc_rounds):
            for dtype in ours:
                side = our_training(full, work, batch, length, dtype)
                try:
                    ours[dtype] += by_turns({"ours": side}, options.rounds, options.llmc_warm)[0]["ours"]
                finally:
                    side.close()
            done = subprocess.run([program], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            took = [float(value) * 1e-3 for value in re.findall(r"step \d+: .*took ([0-9.]+) ms", done.stdout)]
            if done.returncode != 0 or len(took) != steps:
                fail("llm.c failed (%d): %s" % (done.returncode, done.stdout[-500:]))
            theirs += took[1:]  # the first step touches its memory
        for dtype in ours:
            beside(table, "llm.c fp32: train gpt2-124m %s B=%d T=%d" % (dtype, batch, length), ours[dtype], theirs,
                   batch * length, "tokens/s", "%d steps of llm.c" % len(theirs))


PEERS = {"pytorch": pytorch, "deepspeed": deepspeed, "module": module, "optimizer": optimizer, "adam": adam, "aio": aio,
         "tokenizers": tokenizers, "llmc": llmc}


def main():
    parser = argparse.ArgumentParser(description="Compares Sluice with the peers that are installed", epilog=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", metavar="PEER", help="of " + ", ".join(PEERS))
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds")
    parser.add_argument("--out", help="folder for compare.csv and logs")
    parser.add_argument("--drive", default="runs", help="folder on the drive to use")
    parser.add_argument("--bin", default="build/release")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--model", choices=("plain", "hf", "mixture"), default="plain", help="PyTorch's model: see perf/peers/pytorch_train.py")
    parser.add_argument("--llmc", help="a checkout of llm.c")
    parser.add_argument("--llmc-rounds", type=count_of(1), default=1)
    parser.add_argument("--llmc-batch", type=count_of(1), default=4, help="largest micro-batch")
    parser.add_argument("--text")
    parser.add_argument("--tokenizer", help="tokenizer.json; default: trained on the text")
    parser.add_argument("--shapes", default="", help="micro-batch x tokens; default: " + SHAPES)
    parser.add_argument("--dtypes", default="bf16,fp32")
    parser.add_argument("--modes", default=",".join(MODES), help="modes of pytorch")
    parser.add_argument("--rounds", type=count_of(1), help="rounds that count (default: 7, --quick: 3)")
    parser.add_argument("--warm", type=count_of(0), default=4, help="rounds before these, which PyTorch needs until its memory is warm")
    options = parser.parse_args()
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
    for name in options.peers:
        if name not in PEERS:
            parser.error("%s is none of the peers %s" % (name, ", ".join(PEERS)))
    small, full = ("mixture 2x256", "mixture-280m") if options.model == "mixture" else ("gpt2 4x256", "gpt2-124m")
    options.name = small if options.quick else full
    options.given_shapes = options.shapes
    options.shapes = shapes_of(options.shapes or ("4x128" if options.quick else SHAPES))
    options.dtypes, options.modes = dtypes_of(options.dtypes), options.modes.split(",")
    for mode in options.modes:
        if mode not in MODES:
            parser.error("%s is none of the modes %s" % (mode, ", ".join(MODES)))
    options.llmc_warm = min(options.warm, 2)  # only for our side, whose memory is warm from the start
    options.rounds = options.rounds or (3 if options.quick else 7)
    options.out = options.out or os.path.join("runs/perf", time.strftime("%Y-%m-%d-%H%M%S", time.gmtime()))
    options.side = os.path.join(options.bin, "perf/bench_side")
    options.sluice = os.path.join(options.bin, "src/cli/sluice")
    needs(options.side, options.sluice)
    for file in (options.text, options.tokenizer):
        if file and not os.access(file, os.R_OK):
            fail("%s: cannot be read" % file, 2)
    try:
        os.makedirs(options.out, exist_ok=True)
    except OSError as error:
        fail(said(error), 2)
    csv = os.path.join(options.out, "compare.csv")
    table = Table(csv, limit_word="peer")
    if os.path.getsize(csv) == 0:
        table.file.write("name,value,unit,limit,ratio,spread\n")
    with scratch("compare.", options.drive) as work:
        write_tokens(os.path.join(work, "tokens"), vocab=8192 if options.quick else VOCAB)
        for name in options.peers or PEERS:
            try:
                if name in ("pytorch", "deepspeed", "module", "optimizer"):
                    needs_torch(options)
                PEERS[name](options, table, work)
            except Absent as why:
                table.absent(name, str(why))
    print("kept in %s" % options.out)


if __name__ == "__main__":
    main_of(main)
