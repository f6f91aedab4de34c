"""Two ranks of an engine, one of which fails at a drawn moment: the job ends by itself, with a status
other than 0 and a sentence that names the rank.

    test_torch_failures.py [JOBS [SEED [torchrun]]]      more jobs than the tests take; each takes seconds
"""

import os
import random
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import torch  # noqa: F401
except ImportError:
    raise unittest.SkipTest("this Python has no torch") from None

import forked_ranks
import launchers

JOBS, SEED, LAUNCHER = 2, None, None
LIMIT_SECONDS = 60

PROGRAM = """
import os, signal, sys, threading
sys.path.insert(0, {tests!r})
import torch, sluice, sluice.torch, torch_models as models
torch.set_num_threads(1)
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["RANK"])
engine, place = None, [0]
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored, as in the background

def fail():
    how = {how!r}
    open({directory!r} + "/failed", "w").close()
    if how == "raise":
        raise ValueError("on purpose")
    elif how == "exit":
        sys.exit(5)
    elif how == "end":
        sys.exit(0)
    elif how == "leave":
        os._exit(4)
    elif how == "abort":
        os.abort()
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    elif how == "evaluate alone":
        with torch.no_grad():
            engine(data[0])
    elif how == "step alone":
        models.engine_losses(engine, data[:1])
    else:
        getattr(engine, how.split()[0])()

def at(name):
    if rank == {victim} and (name, place[0]) == ({moment!r}, {step}):
        if {late}:
            threading.Timer({late}, fail).start()
        else:
            fail()

def in_forward(block, inputs, output):
    what = "recorded " if engine._core is None else "" if torch.is_grad_enabled() else "evaluated "
    if output.requires_grad:
        output.register_hook(lambda gradient: at(what + "backward"))
    at(what + "forward")

def train():
    at("begin")
    engine.prepare(data[0])
    at("prepared")
    for step in range(4):
        place[0] = step
        loss = engine(data[2 * step + rank])
        at("between")
        engine.backward(loss)
        at("before step")
        engine.step()
        at("after step")
        with torch.no_grad():
            engine(data[9])
            at("evaluation")
        if step % 2:
            at("before commit")
            engine.commit()
            at("after commit")
        elif step == 2:
            at("before state_dict")
            engine.state_dict()
    at("before close")
    engine.close()

data = models.batches(models.Language, 10)
module = models.make(models.Language, dropout=0.0)
module.blocks[1].register_forward_hook(in_forward)
engine = sluice.torch.Engine(
    module, device="32MiB", host="32MiB", nvme=[{directory!r} + "/drive"], run_dir={directory!r} + "/run",
    config={{"zero_optimization": {{"stage": {stage}}}, "tiers": {{"place": {{"optimizer": {home!r}}}}},
             "comm": {{"timeout_seconds": 20}}}})
way = {way!r}
if way == "with":
    with engine:
        train()
elif way == "finally":
    try:
        train()
    finally:
        engine.close()
elif way == "caught":
    try:
        train()
    except (Exception, KeyboardInterrupt) as error:
        print("caught", type(error).__name__, error, file=sys.stderr)
        engine.close()
        sys.exit(3)
else:
    train()
"""

#: When a rank fails, by the calls that its program is in or between.
MOMENTS = ("begin", "recorded forward", "recorded backward", "prepared", "forward", "between",
           "backward", "before step", "after step", "evaluated forward", "evaluation",
           "before commit", "after commit", "before state_dict", "before close")
#: How it fails: at any moment, ...
FAILURES = ("raise", "exit", "end", "leave", "abort", "kill", "interrupt")
#: ... at moments between calls, ...
ALONE = ("commit alone", "close alone", "evaluate alone", "state_dict alone", "step alone")
BETWEEN = ("prepared", "after step", "evaluation", "before commit", "after commit",
           "before state_dict")
#: ... and by a signal, a little later.
LATE = ("abort", "kill", "interrupt", "leave")


def draw(chosen):
    """A job: who fails, when and how."""
    moment = chosen.choice(MOMENTS)
    how = chosen.choice(FAILURES + (ALONE if moment in BETWEEN else ()))
    return {
        "victim": chosen.randrange(2),
        "moment": moment,
        "how": how,
        "late": chosen.choice([0, chosen.random() / 4]) if how in LATE else 0,
        "step": step_of(moment, chosen),
        "way": chosen.choice(["plain", "with", "finally", "caught"]),
        "stage": chosen.randrange(4),
        "home": chosen.choice(["host", "nvme"]),
    }


def step_of(moment, chosen):
    """A step in which the moment comes."""
    if moment in ("begin", "recorded forward", "recorded backward", "prepared"):
        return 0
    if moment == "before close":
        return 3
    if "commit" in moment:
        return chosen.choice([1, 3])
    return 2 if "state_dict" in moment else chosen.randrange(4)


def is_certain(job):
    """The failure comes before the program's end, and is one."""
    return not job["late"] and (job["how"], job["moment"]) != ("end", "before close")


def is_open(job):
    """The ranks have met, and none has made its last call."""
    if job["moment"] == "after commit" and job["step"] == 3:
        return False  # only close() follows, as after "before close"
    return job["moment"] not in ("begin", "recorded forward", "recorded backward", "before close")


def run(job, launcher, server, directory):
    """Returns the exit status, None if the job goes on for LIMIT_SECONDS after the failure, or for
    three times as long without one; what the ranks have printed; and how long the job went on after
    the failure. Seconds are counted, not measured: the machine may stand still."""
    path, failed = (os.path.join(directory, name) for name in ("program.py", "failed"))
    with open(path, "w") as file:
        file.write(PROGRAM.format(tests=os.path.dirname(os.path.abspath(__file__)),
                                  directory=directory, **job))
    with open(os.path.join(directory, "output"), "w+") as output:
        made = subprocess.Popen([*launcher, *server.program(path)], stdin=subprocess.DEVNULL,
                                stdout=output, stderr=subprocess.STDOUT,
                                env=launchers.environment(launcher))
        before, waited = 0.0, 0.0
        while made.poll() is None and waited < LIMIT_SECONDS and before < 3 * LIMIT_SECONDS:
            time.sleep(0.05)
            if os.path.exists(failed):
                waited += 0.05
            else:
                before += 0.05
        status = made.poll()
        if status is None:
            made.terminate()
            made.wait()
        output.seek(0)
        return status, output.read(), waited


class Failures(unittest.TestCase):
    @unittest.skipUnless(launchers.has_mpirun(), "there is no mpirun")
    def test_each_job_ends_and_names_the_rank(self):
        seed = SEED if SEED is not None else random.randrange(1 << 30)
        launcher = launchers.TORCHRUN if LAUNCHER == "torchrun" else launchers.MPIRUN
        with tempfile.TemporaryDirectory() as scratch, forked_ranks.Server(scratch) as server:
            for number in range(seed, seed + JOBS):
                job = draw(random.Random(number))
                with self.subTest(seed=number, **job):
                    directory = os.path.join(scratch, str(number))
                    os.mkdir(directory)
                    status, text, waited = run(job, launcher, server, directory)
                    print(f"seed {number}: status {status} after {waited:.1f} s", file=sys.stderr)
                    self.assertIsNotNone(status, text)
                    if is_certain(job):
                        self.assertNotEqual(status, 0, text)
                        if is_open(job):
                            self.assertRegex(text, r"rank [01]\b")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        JOBS = int(sys.argv[1])
    if len(sys.argv) > 2:
        SEED = int(sys.argv[2])
    if len(sys.argv) > 3:
        LAUNCHER = sys.argv[3]
    unittest.main(argv=sys.argv[:1])
