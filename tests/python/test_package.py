"""The package as it is installed: import, the command, tasks, a run step by step, refusals."""

import functools
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

import launchers
import sluice
from sluice import _process
from tiny import tiny_job, write_job


class InDirectory(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = scratch.name

    def path(self, name):
        return os.path.join(self.directory, name)

    def assert_fails(self, kind, status, text, function, *arguments, **options):
        with self.assertRaises(kind) as caught:
            function(*arguments, **options)
        self.assertIsInstance(caught.exception, sluice.Error)
        self.assertEqual(caught.exception.status, status)
        self.assertIn(text, str(caught.exception))


class Installed(unittest.TestCase):
    def test_command(self):
        command = os.path.join(os.path.dirname(sys.executable), "sluice")
        text = subprocess.run([command, "--version"], check=True, capture_output=True, text=True)
        self.assertEqual(text.stdout, f"sluice {sluice.__version__}\n")
        module = subprocess.run([sys.executable, "-m", "sluice", "--version"], check=True,
                                capture_output=True, text=True)
        self.assertEqual(module.stdout, text.stdout)
        wrong = subprocess.run([command, "nothing"], capture_output=True, text=True)
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("unknown command", wrong.stderr)

    def test_import_loads_nothing_large(self):
        code = "import sluice, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_types_come_with_it(self):
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(sluice.__file__), "py.typed")))

    def test_every_public_name_has_a_description(self):
        for name in sluice.__all__:
            if name != "__version__":
                self.assertTrue(getattr(sluice, name).__doc__, name)


class Tasks(InDirectory):
    def test_plan(self):
        job = tiny_job(self.directory)
        plan = sluice.plan(job)
        self.assertEqual(plan.tokens_per_step, 64)
        self.assertGreater(plan.step_seconds, 0)
        self.assertLessEqual(plan.peak_bytes.device, plan.budget_bytes.device)
        self.assertIn("lanes", plan.figures)
        self.assertEqual(sluice.plan(job, ranks=2).world_size, 2)
        self.assertEqual(os.listdir(self.directory), ["text.txt"])
        self.assert_fails(sluice.NoFit, 3, "tiers.device.budget", sluice.plan, job,
                          set={"tiers.device.budget": "64KiB"})
        preset = {**job, "model": {"preset": "gpt2-124m", "seq_length": 64},
                  "tiers": {"device": {"budget": "8GiB"}, "host": {"budget": "8GiB"}}}
        self.assertGreater(sluice.plan(preset).parameters, 100e6)

    def test_train_and_use_the_model(self):
        job = tiny_job(self.directory, run={"eval_every": 2})
        steps, losses = [], []
        made = sluice.train(job, on_step=steps.append, on_evaluation=lambda *it: losses.append(it))
        self.assertEqual((made.step, made.steps_done, made.resumed), (4, 4, False))
        self.assertEqual([step.step for step in steps], [1, 2, 3, 4])
        self.assertEqual([step for step, _ in losses], [2, 4])
        self.assertEqual(made.valid_loss, losses[-1][1])

        run = sluice.Run(job["run"]["dir"])
        metrics = run.metrics()
        self.assertEqual([line.step for line in metrics.steps], [1, 2, 3, 4])
        self.assertAlmostEqual(metrics.steps[3].loss, steps[3].loss, places=6)
        self.assertGreater(metrics.steps[3].lanes["read"].bytes, 0)
        self.assertGreater(metrics.steps[3].peak_bytes.nvme, 0)
        self.assertEqual([line.step for line in metrics.evaluations], [2, 4])
        self.assertEqual(run.plan().parameters, sluice.plan(job).parameters)

        pieces = []
        text = run.generate("line 7", tokens=9, ignore_end=True, on_text=pieces.append)
        self.assertEqual("".join(pieces), text.text)
        self.assertTrue(text.text.startswith("line 7"))
        self.assertEqual((len(text.prompt_ids), len(text.ids)), (6, 9))
        self.assertEqual(text.ids, run.generate("line 7", tokens=9, ignore_end=True).ids)
        with self.assertRaises(ZeroDivisionError):
            run.generate("line 7", on_text=lambda piece: 1 / 0)
        self.assertGreater(run.evaluate([job["data"]["train"][0]], batches=2).bits_per_byte, 0)
        run.export(self.path("hf"))
        self.assertIn("model.safetensors", os.listdir(self.path("hf")))
        self.assert_fails(sluice.WrongJob, 2, "not empty", run.export, self.path("hf"))

    def test_an_exception_of_a_callback_commits_and_resumes(self):
        def fail(step):
            if step.step == 2:
                raise ValueError("enough")

        whole = tiny_job(self.directory, run={"dir": self.path("whole")})
        sluice.train(whole)
        job = tiny_job(self.directory)
        with self.assertRaisesRegex(ValueError, "enough"):
            sluice.train(job, on_step=fail)
        self.assertEqual([line.step for line in sluice.Run(self.path("run")).metrics().steps], [1, 2])
        made = sluice.train(job)
        self.assertEqual((made.resumed, made.steps_done), (True, 2))
        bits = [[line.loss_bits for line in sluice.Run(self.path(name)).metrics().steps]
                for name in ("whole", "run")]
        self.assertEqual(bits[0], bits[1])

    def test_probe(self):
        path = self.path("machine.json")
        told = []
        machine = sluice.probe(path, drives=[self.directory], _tiny=True,
                               on_progress=lambda what, share: told.append(share))
        self.assertGreater(len(told), 0)
        self.assertIn("host", machine)
        self.assertTrue(sluice.plan(tiny_job(self.directory), machine=path).figures["machine"]["is_measured"])


class Readme(InDirectory):
    def test_example(self):
        readme = os.path.join(os.environ["SLUICE_SOURCE_DIR"], "src", "python", "README.md")
        with open(readme, encoding="utf-8") as file:
            code = file.read().split("```python\n")[1].split("```")[0]
        os.rename(tiny_job(self.directory)["data"]["train"][0], self.path("book.txt"))
        done = subprocess.run([sys.executable, "-c", code], cwd=self.directory, check=True,
                              capture_output=True, text=True)
        lines = done.stdout.splitlines()
        self.assertGreater(float(lines[0]), 0)
        self.assertEqual([line.split()[0] for line in lines[1:101]], [str(i) for i in range(1, 101)])
        self.assertLess(float(lines[100].split()[1]), float(lines[1].split()[1]))
        self.assertIn("It was", lines[101])


class Open(InDirectory):
    def test_steps(self):
        job = write_job(self.directory)
        with sluice.open(job) as run:
            info = run.info()
            self.assertEqual((info.step, info.steps, info.world_size), (0, 4, 1))
            losses = [run.step().loss for _ in range(2)]
            self.assertGreater(run.evaluate(), 0)
            self.assertEqual(run.commit(), 2)
            run.export(self.path("hf"))
        self.assertLess(losses[1], losses[0])
        with sluice.open(job) as run:
            self.assertEqual(run.info().step, 2)
            self.assertEqual([run.step().step, run.step().step], [3, 4])
            self.assert_fails(sluice.WrongJob, 2, "run.steps", run.step)

    def test_other_threads_go_on_and_cores_are_given_back(self):
        cores = os.sched_getaffinity(0)
        count = [0]
        done = threading.Event()

        def work():
            while not done.is_set():
                count[0] += 1

        thread = threading.Thread(target=work)
        thread.start()
        try:
            with sluice.open(tiny_job(self.directory)) as run:
                for _ in range(4):
                    run.step()
        finally:
            done.set()
            thread.join()
        self.assertGreater(count[0], 0)
        self.assertEqual(os.sched_getaffinity(0), cores)

    def test_wrong_uses(self):
        job = tiny_job(self.directory)
        with sluice.open(job) as run:
            child = os.fork()  # it may do anything but use Sluice
            if child == 0:
                try:
                    run.step()
                except sluice.WrongJob as error:
                    os._exit(0 if "forked" in str(error) else 1)
                os._exit(2)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            first = run.step().loss
            self.assert_fails(sluice.WrongJob, 2, "close it first", sluice.train, job)
            self.assert_fails(sluice.WrongJob, 2, "another run of this one", sluice.open, job)
            with sluice.open({**job, "run": {**job["run"], "dir": os.path.join(self.directory, "other")}}) as other:
                self.assertEqual(other.step().loss, first)
                run.step()
                other.step()
            errors = []

            def elsewhere():
                try:
                    run.step()
                except sluice.Error as error:
                    errors.append(str(error))

            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            self.assertIn("another thread", errors[0])
            sluice.plan(job)  # needs no run
            thread = threading.Thread(target=run.close)  # its opener may have ended
            thread.start()
            thread.join()
            self.assertFalse(run.is_open)
        self.assert_fails(sluice.WrongJob, 2, "closed", run.step)
        run.close()  # again
        child = os.fork()
        if child == 0:
            try:
                sluice.train(job)
            except sluice.WrongJob as error:
                os._exit(0 if "forked" in str(error) else 1)
            os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)

        threading.stack_size(512 << 10)
        thread = threading.Thread(target=self.assert_fails,
                                  args=(sluice.WrongJob, 2, "stack", sluice.plan, job))
        thread.start()
        thread.join()
        threading.stack_size(0)

        inner = []

        def call(step):
            with self.assertRaises(sluice.WrongJob) as caught:
                sluice.plan(job)
            inner.append(str(caught.exception))

        sluice.train(job, on_step=call)
        self.assertIn("one at a time", inner[0])

    def test_wrong_arguments(self):
        job = tiny_job(self.directory)
        wrong = self.assert_fails
        wrong(sluice.WrongJob, 2, "num_layers", sluice.open, job, set={"model.num_layer": 3})
        wrong(sluice.WrongJob, 2, "no/such", sluice.open, "no/such.json")
        wrong(sluice.WrongJob, 2, "int", sluice.train, 3)
        wrong(sluice.WrongJob, 2, '"set"', sluice.train, job, set="run.steps=3")
        wrong(sluice.WrongJob, 2, "JSON", sluice.train, {"run": {1, 2}})
        wrong(sluice.WrongJob, 2, "no/such", sluice.Run, "no/such")
        wrong(sluice.WrongJob, 2, "metrics.jsonl", sluice.Run(self.directory).metrics)
        wrong(sluice.WrongJob, 2, "plan.json", sluice.Run(self.directory).plan)
        wrong(sluice.WrongJob, 2, "temperature", sluice.generate, self.directory, temperature=-1)
        wrong(sluice.WrongJob, 2, "name files", sluice.evaluate, self.directory, [])
        wrong(sluice.WrongJob, 2, "no/such", sluice.export, "no/such", self.path("out"))
        wrong(sluice.WrongJob, 2, "no/such", sluice.probe, drives=["no/such"])
        for call in (sluice.open, sluice.train):  # this would replace the user's job file
            wrong(sluice.WrongJob, 2, "rename that file", call, write_job(self.directory),
                  set={"run.dir": self.directory})
        wrong(sluice.WrongJob, 2, "a list of texts", sluice.open, job, set=[3])
        wrong(sluice.WrongJob, 2, "a list of texts", sluice.plan, job, set=3)
        wrong(sluice.WrongJob, 2, "files[0] is int", sluice.evaluate, self.directory, [3])
        wrong(sluice.WrongJob, 2, "files is int", sluice.evaluate, self.directory, 3)
        wrong(sluice.WrongJob, 2, "on_step is int", sluice.train, job, on_step=3)
        wrong(sluice.WrongJob, 2, "ranks is -1", sluice.plan, job, ranks=-1)
        wrong(sluice.WrongJob, 2, "tokens is -1", sluice.generate, self.directory, tokens=-1)
        wrong(sluice.WrongJob, 2, "must be a text", sluice.generate, self.directory, 3)
        wrong(sluice.WrongJob, 2, "no path", sluice.plan, "a\0b")
        wrong(sluice.WrongJob, 2, "must be a path", sluice.Run, None)
        wrong(sluice.WrongJob, 2, "machine is int", sluice.plan, job, machine=3)
        wrong(sluice.WrongJob, 2, "must be Unicode", sluice.plan, job, machine=b"a\xff")
        wrong(sluice.WrongJob, 2, "must be Unicode", sluice.open, job, start_from=b"a\xff")
        for none in (None, [None]):
            wrong(sluice.WrongJob, 2, '"set" has NoneType', sluice.plan, job, set=none)
        wrong(sluice.WrongJob, 2, "without NUL", sluice.plan, job, set=["run.steps=1\0"])
        for name in ("ranks", "ranks_per_host"):
            wrong(sluice.WrongJob, 2, f"{name} is 4294967298, and must be at most 4294967295",
                  sluice.plan, job, **{name: 2**32 + 2})
        for name in ("temperature", "top_p"):
            for number in ("1", None, float("nan")):
                wrong(sluice.WrongJob, 2, f"{name} is {number!r}, and must be a finite number",
                      sluice.generate, self.directory, **{name: number})
        wrong(sluice.WrongJob, 2, "stop_text is bytes", sluice.generate, self.directory,
              stop_text=b"x")
        wrong(sluice.WrongJob, 2, "system is int", sluice.generate, self.directory, system=3)
        wrong(sluice.WrongJob, 2, "prompt is", sluice.generate, self.directory, "\ud800")
        wrong(sluice.WrongJob, 2, "backend is int", sluice.probe, backend=3)
        wrong(sluice.WrongJob, 2, "dtype is int", sluice.export, self.directory,
              self.path("out"), dtype=3)


# Rank 0 works on for longer than the run's debug.comm.exit_seconds after rank 1 has ended, and
# child processes end as Python does while a run is open and after it.
RANK = """
import os, sys, time
import sluice

def fork():
    child = os.fork()
    if child == 0:
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

with sluice.open(sys.argv[1]) as run:
    losses = [run.step().loss for _ in range(3)]
    info = run.info()
    fork()
fork()
if info.rank == 0:
    time.sleep(4)
with open(f"{sys.argv[2]}/rank{info.rank}of{info.world_size}", "w") as file:
    file.write(str(losses))
"""


# Rank 1 fails after its last run, while rank 0 waits for it.
FAILING_RANK = """
import sys, time
import sluice
with sluice.open(sys.argv[1]) as run:
    run.step()
    rank = run.info().rank
if rank == 1:
    sys.exit(3)
time.sleep(60)
print("went on")
"""


# Rank 1 does something alone between two steps, while rank 0 goes on with its steps.
ALONE = """
import sys
import sluice
run = sluice.open(sys.argv[1])
for _ in range(3):
    run.step()
if run.info().rank == 1:
    way = sys.argv[2]
    if way == "raises":
        raise ValueError("a bad batch")
    elif way == "exits":
        sys.exit(5)
    elif way == "with":
        with run:
            raise ValueError("a bad batch")
    elif way == "closes":
        run.close()
    elif way == "commits":
        run.commit()
for _ in range(900):
    run.step()
"""


class Ranks(InDirectory):
    @unittest.skipUnless(launchers.has_mpirun(), "there is no mpirun")
    def test_a_rank_that_does_something_alone(self):
        come = {"raises": "its end after ValueError: a bad batch",
                "with": "its end after ValueError: a bad batch",
                "exits": "the end of its run", "closes": "the end of its run",
                "commits": "a commit between steps"}
        for way, text in come.items():
            with self.subTest(way=way):
                job = write_job(
                    self.directory, run={"dir": self.path(way), "steps": 1000, "commit_every": 2})
                done = subprocess.run(
                    [*launchers.MPIRUN, "-c", ALONE, job, way], capture_output=True, text=True,
                    timeout=150, env=launchers.environment(launchers.MPIRUN))
                self.assertNotEqual(done.returncode, 0)
                self.assertRegex(done.stderr, f"rank 1 on host .* has come to {text}, and rank 0 ")
                if "ValueError" in text:
                    self.assertIn("ValueError: a bad batch\n", done.stderr)  # of the traceback
                with sluice.open(job) as run:
                    self.assertEqual(run.info().step, 2)

    @unittest.skipUnless(launchers.has_mpirun(), "there is no mpirun")
    def test_two_ranks(self):
        job = write_job(self.directory, debug={"comm": {"exit_seconds": 1}})
        done = subprocess.run(
            [*launchers.MPIRUN, "-c", RANK, job, self.directory], capture_output=True, text=True,
            timeout=150, env=launchers.environment(launchers.MPIRUN))
        self.assertEqual(done.returncode, 0, done.stderr)
        losses = []
        for rank in range(2):
            with open(self.path(f"rank{rank}of2")) as file:
                losses.append(file.read())
        self.assertEqual(losses[0], losses[1])
        self.assertEqual(len(sluice.Run(self.path("run")).metrics().steps), 3)

    @unittest.skipUnless(launchers.has_mpirun(), "there is no mpirun")
    def test_a_program_that_fails_after_its_last_run(self):
        job = write_job(self.directory, debug={"comm": {"exit_seconds": 1}})
        done = subprocess.run(
            [*launchers.MPIRUN, "-c", FAILING_RANK, job], capture_output=True, text=True,
            timeout=150, env=launchers.environment(launchers.MPIRUN))
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("the program of rank 1 ended with status 3", done.stderr)
        self.assertNotIn("went on", done.stdout)


# Trains 10000 steps until a signal comes, in a process of its own.
INTERRUPTED = """
import signal, sys
import sluice
from tiny import write_job
job = write_job(sys.argv[1], run={"steps": 10000, "commit_every": 5000})
try:
    sluice.train(job, on_step=lambda step: step.step == 3 and print("trains", flush=True))
except KeyboardInterrupt:
    print("interrupted", len(sluice.Run(sys.argv[1] + "/run").metrics().steps))
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
with sluice.open(job) as run:
    print("resumes at", run.info().step)
left = sluice.open(job)
print("step", left.step().step)
"""


# Ends while a daemon thread trains.
LEFT_AT_WORK = """
import sys, threading
import sluice
from tiny import write_job
job = write_job(sys.argv[1], run={"steps": 100000, "commit_every": 50000})
trains = threading.Event()
threading.Thread(target=sluice.train, args=(job,), daemon=True,
                 kwargs={"on_step": lambda step: trains.set()}).start()
trains.wait()
"""


class Ends(unittest.TestCase):
    def test_all_runs_are_closed(self):
        """Also if a Ctrl-C ends the close of one."""
        closed = []

        def close(number):
            closed.append(number)
            if number < 2:
                raise KeyboardInterrupt(number)

        sessions = [mock.Mock(is_open=True, at_end=functools.partial(close, i)) for i in range(3)]
        with mock.patch.multiple(_process, _native=mock.Mock(), _sessions=sessions):
            with self.assertRaises(KeyboardInterrupt) as caught:
                _process._end()
        self.assertEqual((closed, caught.exception.args), ([0, 1, 2], (0,)))


class Signals(InDirectory):
    def test_the_program_ends_in_the_middle(self):
        done = subprocess.run(
            [sys.executable, "-c", LEFT_AT_WORK, self.directory], capture_output=True, text=True,
            timeout=150,
            env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.abspath(__file__))})
        self.assertEqual(done.returncode, 0, done.stderr)
        made = len(sluice.Run(self.path("run")).metrics().steps)
        self.assertGreater(made, 0)
        with sluice.open(self.path("job.json")) as run:
            self.assertEqual(run.info().step, made)

    def test_interrupt(self):
        process = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, self.directory], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.abspath(__file__))})
        self.assertEqual(process.stdout.readline(), "trains\n")
        process.send_signal(2)
        text = process.communicate(timeout=150)[0].split()
        self.assertEqual(process.returncode, 0)
        self.assertEqual(text[0], "interrupted")
        self.assertGreaterEqual(int(text[1]), 3)
        self.assertEqual(text[2:5], ["resumes", "at", text[1]])
        # A run that was left open at the end of the program is committed.
        self.assertEqual(text[5:], ["step", str(int(text[1]) + 1)])
        with sluice.open(self.path("job.json")) as run:
            self.assertEqual(run.info().step, int(text[1]) + 1)


if __name__ == "__main__":
    unittest.main()
