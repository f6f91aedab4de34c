"""Shared by the Python programs of perf/: jobs, runs of sluice, medians with their spread, lines of CSV.

Uses the standard library only. Lines of CSV are those of perf/bench.h: name,value,unit,limit,ratio,spread.
"""

import argparse
import array
import contextlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

VOCAB = 50257
SLUICE = "build/release/src/cli/sluice"
TIERS = ("device", "host", "nvme")


SHAPES = "4x256,16x256,4x1024"  # micro-batch x tokens of trainings in memory


# SIGTERM also lets a program remove its files.
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def fail(text, code=1):
    """Ends the program. Code 1: the work failed; 2: wrong use."""
    print("%s: %s" % (os.path.basename(sys.argv[0]), text), file=sys.stderr)
    sys.exit(code)


def said(error):
    """Returns the text of an OSError without its number."""
    return "%s: %s" % (error.filename, error.strerror) if error.filename else str(error)


def main_of(main):
    """Runs main; Ctrl-C and system errors end the program with one sentence."""
    try:
        main()
    except KeyboardInterrupt:
        fail("stopped", 130)
    except OSError as error:
        fail(said(error))


def needs(*programs):
    for program in programs:
        if not os.access(program, os.X_OK):
            fail("%s is not built: cmake --preset release && cmake --build --preset release" % program, 2)


@contextlib.contextmanager
def scratch(prefix, folder):
    """Makes a directory below `folder`, and removes it at the end. `folder` is created if needed, and stays."""
    try:
        os.makedirs(folder, exist_ok=True)
        work = tempfile.mkdtemp(prefix=prefix, dir=os.path.abspath(folder))
    except OSError as error:
        fail(said(error), 2)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def count_of(lowest):
    """Returns a type for argparse: a whole number of at least `lowest`."""
    def number(text):
        if not text.isdigit() or int(text) < lowest:
            raise argparse.ArgumentTypeError("%s is no whole number of at least %d" % (text, lowest))
        return int(text)
    return number


def shapes_of(text):
    """"4x256,16x256" is [(4, 256), (16, 256)]."""
    found = [re.fullmatch(r"([1-9][0-9]*)x([1-9][0-9]*)", word) for word in text.split(",")]
    if None in found:
        fail("--shapes %s: want micro-batch x tokens, as 4x256,16x256" % text, 2)
    return [(int(shape.group(1)), int(shape.group(2))) for shape in found]


def dtypes_of(text):
    found = text.split(",")
    if any(word not in ("bf16", "fp32") for word in found):
        fail("--dtypes %s: want some of bf16,fp32" % text, 2)
    return found


def busy_seconds():
    """Returns the busy seconds of all cores since the system started, or None if the system does not report them."""
    try:
        with open("/proc/stat") as lines:
            ticks = lines.readline().split()
    except OSError:
        return None
    return sum(int(ticks[i]) for i in (1, 2, 3, 6, 7)) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def watched(what):
    """Warns if other processes took more than a tenth of the cores meanwhile: the figures are then unreliable."""
    def ours():
        times = os.times()
        return times.user + times.system + times.children_user + times.children_system
    before, begin = busy_seconds(), (ours(), time.monotonic())
    yield
    after, took = busy_seconds(), time.monotonic() - begin[1]
    if None in (before, after) or took < 2:
        return
    cores, others = os.cpu_count() or 1, (after - before - (ours() - begin[0])) / took
    if others > 0.1 * cores:
        print("%s: other processes used %.1f of %d cores while %s ran: run it again" %
              (os.path.basename(sys.argv[0]), others, cores, what), file=sys.stderr, flush=True)


def run(command, env=None, allowed=(0,)):
    """Returns the command's standard output. If it fails, ends this program with the command's message."""
    with watched(os.path.basename(command[0])):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=dict(os.environ, **env) if env else None)
    if done.returncode not in allowed:
        told = [line for line in (done.stderr or done.stdout).strip().splitlines() if line] or ["it said nothing"]
        name = " ".join([os.path.basename(command[0])] + command[1:2])
        fail("%s failed (%d): %s" % (name, done.returncode, "\n".join(told[-3:])),
             done.returncode if done.returncode in (2, 3) else 1)
    return done.stdout


class Summary:
    """The median of samples. spread: half of the distance between the quartiles, divided by the median, as in perf/bench.h."""

    def __init__(self, samples):
        ordered = sorted(samples)
        count = len(ordered)
        self.count = count
        self.median = statistics.median(ordered)
        self.lowest, self.highest = ordered[0], ordered[-1]
        self.spread = (ordered[count * 3 // 4] - ordered[count // 4]) / (2 * self.median)


class Table:
    """Prints each figure at once, and appends it to a CSV file if one is given."""

    def __init__(self, csv_path=None, limit_word="limit"):
        self.limit_word = limit_word
        try:
            self.file = open(csv_path, "a") if csv_path else None
        except OSError as error:
            fail("--csv %s" % said(error), 2)

    def add(self, name, value, unit, limit=None, spread=0.0, note=""):
        line = "%-56s %10.4g %-10s +-%4.1f%%" % (name, value, unit, 100 * spread)
        if limit:
            line += "  %s %10.4g  ratio %.3f" % (self.limit_word, limit, value / limit)
        print(line + ("  " + note if note else ""), flush=True)
        if self.file:
            self.file.write("%s,%.6g,%s,%s,%.4f\n" % (name.replace(",", ";"), value, unit,
                                                    "%.6g,%.4f" % (limit, value / limit) if limit else ",", spread))
            self.file.flush()

    def absent(self, name, why):
        """Lists a peer or a tool that is not installed, so that it is never left out silently."""
        print("%-56s absent: %s" % (name, why), flush=True)
        if self.file:
            self.file.write("%s,,absent: %s,,,\n" % (name, why.replace(",", ";")))
            self.file.flush()


def gpt2(layers=12, hidden=768, tokens=1024, vocab=VOCAB):
    return {"family": "gpt2", "num_layers": layers, "hidden_size": hidden, "num_heads": hidden // 64,
            "vocab_size": vocab, "seq_length": tokens, "tie_embeddings": True}


def mixture(layers=8, hidden=768, tokens=1024, vocab=VOCAB):
    """The shape of Qwen3's mixtures: 16 experts, of which each token has 2."""
    return {"family": "qwen3_moe", "num_layers": layers, "hidden_size": hidden, "num_heads": hidden // 64,
            "num_kv_heads": hidden // 128, "head_dim": 64, "num_experts": 16, "num_experts_per_tok": 2,
            "expert_ffn_size": hidden, "norm_topk_prob": True, "qk_norm": True, "vocab_size": vocab, "seq_length": tokens,
            "tie_embeddings": True}


def place(where, activations=None):
    return {"params": where, "grads": where, "optimizer": where, "activations": activations or where}


def write_tokens(path, count=1 << 20, vocab=VOCAB):
    """Writes random ids of 16 bits, the same each time."""
    draw = random.Random(7)
    with open(path, "wb") as out:
        array.array("H", draw.choices(range(vocab), k=count)).tofile(out)


def job_of(work, model, micro=4, accumulation=1, homes=None, budgets=("8GiB", "1GiB"), bf16=True, more=None):
    """Returns a job in memory, or placed by `homes`. Its tokens are those of write_tokens(work + "/tokens")."""
    job = {
        "model": dict(model),
        "data": {"train": [os.path.join(work, "tokens")], "format": "u16", "seed": 1},
        "run": {"dir": os.path.join(work, "run"), "steps": 4, "seed": 1, "eval_every": 0, "commit_every": 0},
        "device": {"backend": "cpu"},
        "tiers": {"device": {"budget": budgets[0]}, "host": {"budget": budgets[1]},
                  "nvme": [{"path": os.path.join(work, "slabs"), "budget": "16GiB"}],
                  "place": homes or place("device")},
        "train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 1.0, "bf16": {"enabled": bf16},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    }
    for path, value in (more or {}).items():
        block = job
        for key in path.split(".")[:-1]:
            block = block.setdefault(key, {})
        block[path.split(".")[-1]] = value
    return job


def write_job(work, name, job):
    path = os.path.join(work, name + ".json")
    with open(path, "w") as out:
        json.dump(job, out)
    return path


def train(sluice, work, job, steps, skipped=2, ranks=1):
    """Makes a new training; returns the lines of metrics.jsonl after step `skipped`. Removes the run's files."""
    job["run"]["steps"] = steps
    path = write_job(work, "job", job)
    command = [sluice, "train", path, "--fresh", "--quiet"]
    if ranks > 1:
        command = ["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", str(ranks)] + command
    try:
        run(command)
        with open(os.path.join(job["run"]["dir"], "metrics.jsonl")) as lines:
            found = [json.loads(line) for line in lines]
    finally:
        shutil.rmtree(job["run"]["dir"], ignore_errors=True)
        shutil.rmtree(os.path.join(work, "slabs"), ignore_errors=True)
    return [line for line in found if "tokens_per_second" in line and line["step"] > skipped]


def plan(sluice, work, job, machine="none", ranks=1):
    return json.loads(run([sluice, "plan", write_job(work, "plan", job), "--json", "--machine", machine, "--ranks",
                           str(ranks)]))


def memory_gib():
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) / 1048576
    return 0


def measured_machine(sluice, work):
    """Returns the path of this machine's machine.json, measured now in under 30 s."""
    path = os.path.join(work, "machine.json")
    run([sluice, "probe", "--quick", "--drive", work, "--out", path])
    return path


def lacks_memory(sluice, work, *jobs):
    """Returns the reason why jobs that run together do not fit into the free memory, or None."""
    peaks = [plan(sluice, work, job)["peak_bytes"] for job in jobs]
    wanted, free = sum(peak["device"] + peak["host"] for peak in peaks) / 2**30, memory_gib()
    return "needs %.1f GiB of memory; %.1f are free" % (wanted, free) if wanted > 0.95 * free else None


class Absent(Exception):
    """A peer is not installed; holds the reason."""


class Side:
    """A program that does one piece of work for each line that it reads: see perf/peers/bench_side.c."""

    def __init__(self, command, log, env=None):
        self.command, self.log = command, log
        if not shutil.which(command[0]):
            raise Absent("%s is not there" % command[0])
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(log, "w"),
                                        text=True, bufsize=1, env=dict(os.environ, **(env or {})))
        self.about = ""
        for line in self.process.stdout:
            if line.startswith("ready"):
                self.about = line[5:].strip()
                return
            if line.startswith("absent"):
                self.process.wait()
                raise Absent(line[6:].strip())
        self.lost()

    def lost(self):
        self.process.wait()
        with open(self.log) as lines:
            said = lines.read()[-1500:]
        code = self.process.returncode
        fail("%s ended (%d): %s" % (" ".join(self.command), code, said), code if code in (2, 3) else 1)

    def do(self, what="step"):
        """Returns (seconds, value)."""
        return tuple(self.answer(what, 2))

    def answer(self, what, count):
        """Returns the first `count` numbers of the answer. Skips lines that are none, such as a library's warnings."""
        try:
            self.process.stdin.write(what + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.lost()
        for line in self.process.stdout:
            words = line.split()[:count]
            with contextlib.suppress(ValueError):
                if len(words) == count:
                    return [float(word) for word in words]
        self.lost()

    def close(self):
        try:
            self.process.stdin.close()
            self.process.wait(60)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()


def by_turns(sides, rounds, warm=2, what="step", swaps=False):
    """Returns the seconds and values of each side. The sides take turns; with `swaps`, every second round is reversed. The
    first `warm` rounds do not count."""
    seconds, values = {name: [] for name in sides}, {name: [] for name in sides}
    for turn in range(-warm, rounds):
        for name in list(sides)[::-1 if swaps and turn % 2 else 1]:
            took, value = sides[name].do(what)
            if turn >= 0:
                seconds[name].append(took)
                values[name].append(value)
    return seconds, values
