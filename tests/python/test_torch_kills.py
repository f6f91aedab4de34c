"""Runs that are killed at any moment, again and again, and go on to the bits of a run that is not.

    test_torch_kills.py [KILLS [SEED]]      more kills than the tests take; each takes some seconds
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import torch  # noqa: F401
except ImportError:
    raise unittest.SkipTest("this Python has no torch") from None

import programs

KILLS, SEED = 1, None
STEPS = 24

#: What both programs begin with: what they print is one write, so that a kill leaves whole lines.
BEGIN = """
import os
import torch, sluice, sluice.torch, torch_models as models
torch.set_num_threads(1)

def say(*words):
    os.write(1, (" ".join(str(word) for word in words) + "\\n").encode())

data = models.batches(models.Language, {steps})
module = models.make(models.Language, dropout=0.0)
drive, run = {drive!r}, {run!r}
"""

#: The module also has buffers that each step changes, and that change its losses.
ENGINE = BEGIN + """
torch.nn.utils.parametrizations.spectral_norm(module.blocks[0].up)
engine = sluice.torch.Engine(module, device="32MiB", host="32MiB", nvme=[drive], run_dir=run, commit_every=3,
                             optimizer=sluice.AdamW(lr=1e-3), config={{
                                 "tiers": {{"place": {{"params": "nvme", "optimizer": "nvme"}}}}}})
engine.prepare(data[0])
say("begins", engine.info().step)
for step in range(engine.info().step, len(data)):
    loss = engine(data[step])
    engine.backward(loss)
    engine.step()
    say("loss", step, loss.item().hex())
engine.close()
"""

OPTIMIZER = BEGIN + """
optimizer = sluice.torch.AdamW(module.parameters(), host="64MiB", nvme=[drive], run_dir=run, commit_every=3)
first = optimizer.state_dict()["sluice"]["step"]
say("begins", first)
for step in range(first, len(data)):
    loss = module(data[step])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    say("loss", step, loss.item().hex())
optimizer.close()
"""


class Kills(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = scratch.name
        self.errors = os.path.join(scratch.name, "errors")
        self.done = 0  # steps that the run to be killed has printed
        seed = SEED if SEED is not None else random.randrange(1 << 30)
        self.random = random.Random(seed)
        print(f"seed {seed}", file=sys.stderr)

    def start(self, program, run):
        """Returns the program and what it prints."""
        text = program.format(
            steps=STEPS,
            drive=os.path.join(self.directory, "drive"), run=os.path.join(self.directory, run),
        )
        reader, writer = os.pipe()
        try:
            with open(self.errors, "w") as errors:
                return programs.Program(text, writer, errors.fileno()), open(reader)
        finally:
            os.close(writer)

    def run_until(self, program, run, kill_at):
        """Kills the process soon after it has printed kill_at losses; None: lets it end. Returns
        the losses that it printed, by step, and fails if it began before its last commit."""
        process, printed = self.start(program, run)
        losses, count = {}, 0
        with process, printed:
            for line in printed:
                if line.startswith("begins"):
                    begins = int(line.split()[1])
                    self.assertGreaterEqual(begins, self.done // 3 * 3 - 3)
                    self.assertLessEqual(begins, self.done + 1)
                if line.startswith("loss"):
                    _, step, bits = line.split()
                    losses[int(step)] = bits
                    count += 1
                if kill_at is not None and count == kill_at:
                    time.sleep(self.random.random() * self.step_seconds)
                    process.kill()
                    kill_at = None
            status = process.wait()
        with open(self.errors) as file:
            text = file.read()
        if kill_at is not None or status != -signal.SIGKILL:
            self.assertEqual(status, 0, text)
        self.done = max(losses, default=self.done - 1) + 1
        return losses

    def verify(self, run):
        command = os.environ.get("SLUICE_COMMAND")
        if command:
            made = subprocess.run([command, "verify", os.path.join(self.directory, run)],
                                  capture_output=True, text=True)
            self.assertEqual(made.returncode, 0, made.stderr)

    def check(self, program):
        begun = time.perf_counter()
        expected = self.run_until(program, "whole", None)
        self.assertEqual(sorted(expected), list(range(STEPS)))
        self.step_seconds = (time.perf_counter() - begun) / STEPS
        self.done = 0
        for _ in range(KILLS):
            found = self.run_until(program, "killed", self.random.randint(0, STEPS // 2))
            for step, bits in found.items():
                self.assertEqual(bits, expected[step], f"step {step}")
            if STEPS - 1 in found:  # it has ended: another one begins
                subprocess.run(["rm", "-rf", os.path.join(self.directory, "killed")], check=True)
                self.done = 0
            elif os.path.exists(os.path.join(self.directory, "killed", "state", "manifest-0")):
                self.verify("killed")
        found = self.run_until(program, "killed", None)
        self.assertEqual(found, {step: bits for step, bits in expected.items() if step in found})
        self.assertIn(STEPS - 1, found)
        self.verify("killed")
        if program is ENGINE:
            self.check_removed("killed")

    def check_removed(self, run):
        command = os.environ.get("SLUICE_COMMAND")
        path = os.path.join(self.directory, run)
        self.assertTrue(os.listdir(os.path.join(path, "buffers")))
        if command:
            subprocess.run([command, "remove", path, "--yes"], check=True, capture_output=True)
            self.assertFalse(os.path.exists(path))

    def test_engine(self):
        self.check(ENGINE)

    def test_optimizer(self):
        self.check(OPTIMIZER)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        KILLS = int(sys.argv[1])
    if len(sys.argv) > 2:
        SEED = int(sys.argv[2])
    unittest.main(argv=sys.argv[:1])
