"""Wrong uses of an engine or an optimizer that a program may make by mistake, and programs that are
interrupted: each is answered by a sentence that says what to do, or does what was meant. None hangs,
and none leaves a run open."""

import gc
import itertools
import math
import os
import resource
import signal
import sys
import threading
import time
import unittest
import unittest.mock

try:
    import torch
except ImportError:
    raise unittest.SkipTest("this Python has no torch") from None

import programs
import sluice
import sluice.torch
import torch_models as models
from simulated_core import open_simulated
from torch_models import Language
from wrong_uses import WrongUses, make


class Steps(WrongUses):
    def test_losses(self):
        engine = self.begun()
        loss = engine(self.data[1])
        engine.backward(loss)
        self.refused("outside of a step", engine.backward, loss)
        engine.step()
        loss = engine(self.data[2])
        self.refused("takes a real loss", engine.backward, torch.complex(loss, loss))
        other = torch.ones(1, requires_grad=True)
        self.refused("depends on no parameter", engine.backward, (2 * other).sum())
        self.refused("depends on no parameter", engine, self.data[2])  # it takes no more steps
        engine.close()
        self.step_is(2)

    def test_exceptions_within_a_step(self):
        for error in (ValueError, KeyboardInterrupt, SystemExit):
            with self.subTest(error=error):
                run = self.path(error.__name__)
                engine = self.begun(run_dir=run)

                def fails(*arguments):
                    raise error("on purpose")

                if error is KeyboardInterrupt:
                    loss = engine(self.data[1])
                    loss.register_hook(lambda gradient: os.kill(os.getpid(), signal.SIGINT))
                    self.assertRaises(error, engine.backward, loss)
                else:
                    engine.module.blocks[1].register_forward_hook(fails)
                    self.assertRaises(error, engine, self.data[1])
                self.refused("takes no more steps", engine, self.data[1])
                engine.close()
                self.step_is(1, run_dir=run)

    @unittest.mock.patch("sluice.torch._engine.check_fit", lambda *arguments: None)
    @unittest.mock.patch("sluice.torch._engine.return_free_memory", lambda: None)
    @unittest.mock.patch("sluice.torch._recording._REPEATS", 0)
    def test_ctrl_c_at_lines_of_an_end(self):
        """Of some lines of close() and commit(), also with an evaluation open: no step is lost, and
        the calls can be made again. test_torch_buffers has what the run itself does there."""

        class Interrupt:
            """Raises where the package comes to its line number `at`."""

            def __init__(self, at):
                self.left = at

            def __call__(self, frame, event, argument):
                if "/sluice/" not in frame.f_code.co_filename:
                    return None
                if event == "line":
                    self.left -= 1
                    if self.left == 0:
                        raise KeyboardInterrupt
                return self

        def is_interrupted(call, at):
            before = sys.gettrace()
            sys.settrace(Interrupt(at))
            try:
                call()
            except KeyboardInterrupt:
                return True
            finally:
                sys.settrace(before)
            return False

        for name, evaluates, stride in (("close", False, 7), ("close", True, 97), ("commit", True, 97)):
            for at in itertools.count(1, stride):
                engine = sluice.torch.Engine(make(), device="32MiB", host="32MiB",
                                             run_dir=self.path("none"))
                engine._open_core = open_simulated
                engine.prepare(self.data[0])
                core = engine._core
                models.engine_losses(engine, self.data[:1])
                if evaluates:
                    with torch.no_grad():
                        expected = engine(self.data[1]).item()
                interrupted = is_interrupted(getattr(engine, name), at)
                if name == "commit":
                    engine.commit()
                    with torch.no_grad():
                        self.assertEqual(engine(self.data[1]).item(), expected)
                    models.engine_losses(engine, self.data[1:2])
                self.assertTrue(core.is_closed or engine._core is core, f"{name}, line {at}")
                engine.close()
                self.assertTrue(core.is_closed)
                self.refused("is closed", engine, self.data[1])
                if not interrupted:
                    break
            self.assertGreater(at, 8)  # it was interrupted more than once

    def test_ctrl_c_while_the_library_commits(self):
        for name in ("commit", "close"):
            for number in range(4):
                run = self.path(f"{name}{number}")
                engine = self.begun(run_dir=run)
                with torch.no_grad():
                    engine(self.data[1])
                delay = number * 0.003
                timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
                try:
                    timer.start()
                    getattr(engine, name)()
                    timer.join()
                except KeyboardInterrupt:
                    pass
                engine.close()
                self.step_is(1, run_dir=run)

    def test_a_fork_within_a_step(self):
        engine = self.begun()
        loss = engine(self.data[1])
        child = os.fork()
        if child == 0:
            status = 1
            try:
                engine.backward(loss)
            except sluice.WrongJob as error:
                status = 0 if "forked" in str(error) else 2
            finally:
                os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        engine.backward(loss)
        engine.step()
        engine.close()
        self.step_is(2)

    def test_limits_of_the_system(self):
        place = {"tiers": {"place": {"params": "nvme", "optimizer": "nvme"}}}
        for name, limit, text in ((resource.RLIMIT_FSIZE, 1024, "File too large"),
                                  (resource.RLIMIT_NOFILE, 3, "all of the 3 open files")):
            run = self.path(f"limit{limit}")
            engine = self.begun(run_dir=run, nvme=[self.path("drive")], config=place)
            engine.commit()
            models.engine_losses(engine, self.data[1:2])
            before = resource.getrlimit(name)
            resource.setrlimit(name, (limit, before[1]))
            try:
                with self.assertRaisesRegex(sluice.Failed, text):
                    engine.commit()
            finally:
                resource.setrlimit(name, before)
            self.assertRaisesRegex(sluice.Failed, text, engine, self.data[2])
            self.assertRaises(sluice.Failed, engine.close)
            self.step_is(1, run_dir=run, nvme=[self.path("drive")], config=place)

    def test_an_exception_while_recording(self):
        engine = self.engine()

        def fails(*arguments):
            raise KeyboardInterrupt

        handle = engine.module.blocks[1].register_forward_hook(fails)
        self.assertRaises(KeyboardInterrupt, engine, self.data[0])
        handle.remove()
        # tokens that are none: torch's own exception
        self.assertRaises(IndexError, engine, torch.full((2, 16), 999))
        torch.manual_seed(5)
        other = Language(dropout=0.0)
        engine.load_state_dict(other.state_dict())  # the values are the module's own again
        expected = other(self.data[0]).item()
        found = models.engine_losses(engine, self.data[:2])
        self.assertAlmostEqual(found[0], expected, places=5)

    def test_batches_of_other_shapes(self):
        plain, _ = models.plain_losses(make(), [self.data[0], self.data[1][:1, :5]])
        found = models.engine_losses(self.engine(), [self.data[0], self.data[1][:1, :5]])
        for one, other in zip(found, plain):
            self.assertAlmostEqual(one, other, places=5)

    def test_wrong_numbers_leave_the_run_as_it_is(self):
        engine = self.begun()
        group = engine.optimizer.param_groups[0]
        texts = {"x": "lr is 'x'", None: "lr is None", -1.0: "has lr -1", math.nan: "lr is nan",
                 math.inf: "lr is inf"}
        for wrong, text in texts.items():
            group["lr"] = wrong
            self.refused(text, engine, self.data[1])
        group["lr"] = 1e-3
        models.engine_losses(engine, self.data[1:2])
        more = {"params": [torch.nn.Parameter(torch.ones(1))]}
        self.refused("groups=", engine.optimizer.add_param_group, more)
        engine.close()
        module = make()
        own = self.optimizer(module.parameters())
        module(self.data[0]).backward()
        for wrong, text in texts.items():
            own.param_groups[0]["lr"] = wrong
            self.refused(text, own.step)
        own.param_groups[0]["lr"] = 1e-3
        own.step()

    def test_a_grad_scaler(self):
        engine = self.begun()
        scaler = torch.amp.GradScaler("cpu")
        loss = engine(self.data[1])
        engine.backward(scaler.scale(loss))
        scaler.unscale_(engine.optimizer)
        self.refused("GradScaler finds no gradients", scaler.step, engine.optimizer)
        self.refused("call engine.step()", engine.skip)
        engine.step()
        engine.backward(engine(self.data[2]))
        torch.amp.GradScaler("cpu", enabled=False).step(engine.optimizer)
        engine.close()
        self.step_is(3)
        module, plain = make(), make()
        own, torchs = self.optimizer(module.parameters()), torch.optim.AdamW(plain.parameters(), lr=1e-3)
        for trained, optimizer in ((module, own), (plain, torchs)):
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(trained(self.data[0])).backward()
            scaler.step(optimizer)
            scaler.update()
        self.assertTrue(torch.allclose(module.norm.weight, plain.norm.weight))
        own.close()
        module = make()
        own = self.optimizer(module.parameters(), overlap=True)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(module(self.data[0])).backward()
        self.refused("use overlap=False", scaler.step, own)
        own.step()

    def test_an_optimizer_of_torch_beside_the_engine(self):
        module, own = make(), torch.nn.Parameter(torch.ones(1))
        shared = torch.optim.SGD([own, *module.blocks[1].parameters()], lr=1.0)
        other = torch.optim.SGD([own], lr=1.0)
        own.grad = torch.ones(1)
        engine = self.begun(module)
        loss = engine(self.data[1])
        engine.backward(loss)
        self.refused("step() of this SGD would not change its parameters", shared.step)
        self.assertEqual(own.item(), 1.0)
        other.step()
        self.assertEqual(own.item(), 0.0)
        engine.optimizer.step()
        models.engine_losses(engine, self.data[2:3])
        engine.close()
        shared.step()
        self.assertEqual(own.item(), -1.0)
        self.step_is(3)

    def test_the_forward_calls_the_engine(self):
        class Calls(Language):
            engine = None

            def forward(self, tokens):
                if self.engine is not None:
                    self.engine(tokens)
                return super().forward(tokens)

        engine = self.begun(make(Calls))
        Calls.engine = engine
        self.refused("has had no backward", engine, self.data[1])
        Calls.engine = None

    def test_without_run_dir_nothing_is_kept(self):
        own = self.optimizer()
        self.refused("give run_dir", own.commit)
        self.refused("give run_dir", own.state_dict)
        self.refused("of another optimizer", own.load_state_dict, None)


class Threads(WrongUses):
    def test_any_thread_may_close(self):
        engine = self.begun()
        self.assertIsNone(self.in_thread(engine.close))
        self.step_is(1)
        own = self.optimizer()
        self.assertIsNone(self.in_thread(own.close))
        self.optimizer().close()

    def test_the_thread_that_opened_has_ended(self):
        engine = self.engine()
        self.assertIsNone(self.in_thread(models.engine_losses, engine, self.data[:1]))
        models.engine_losses(engine, self.data[1:2])
        self.assertEqual(len(engine.state_dict()), 34)
        engine.close()
        self.step_is(2)

    def test_an_engine_that_another_thread_drops(self):
        kept = [sluice.torch.Engine(make(), device="32MiB", host="32MiB", run_dir=self.path("run"))]
        models.engine_losses(kept[0], self.data[:1])
        self.assertIsNone(self.in_thread(kept.clear))
        self.step_is(1)

    def test_an_optimizer_that_another_thread_drops(self):
        for steps in (0, 1):
            module = make()
            kept = [sluice.torch.AdamW(module.parameters(), host="64MiB")]
            for _ in range(steps):
                module(self.data[0]).backward()
                kept[0].step()
            before = [p.detach().clone() for p in module.parameters()]

            def drop():
                kept.clear()
                gc.collect()

            self.assertIsNone(self.in_thread(drop))
            for one, other in zip(module.parameters(), before):
                self.assertTrue(torch.equal(one, other))
            self.optimizer().close()

    def test_two_at_a_time(self):
        engine, errors = self.begun(), []
        inside, over = threading.Event(), threading.Event()

        def waits(*arguments):
            inside.set()
            over.wait()

        handle = engine.module.blocks[1].register_forward_hook(waits)
        thread = threading.Thread(target=models.engine_losses, args=(engine, self.data[1:2]))
        thread.start()
        try:
            self.assertTrue(inside.wait(60))
            for call in (engine.step, engine.close, engine.commit, lambda: engine(self.data[2])):
                errors.append(self.in_thread(call))
        finally:
            over.set()
            thread.join()
        handle.remove()
        for error in errors:
            self.assertIn("another thread is in a call of the same Engine", str(error))
        models.engine_losses(engine, self.data[2:3])
        engine.close()
        self.step_is(3)


    def test_two_engines_in_two_threads(self):
        """A call of one waits until the other's is over. A Ctrl-C ends the wait, and a child that is
        forked meanwhile does not wait."""
        engine, other = self.begun(), self.engine(run_dir=self.path("other"))
        inside, steps, over = threading.Event(), threading.Event(), threading.Event()
        fill, found, was_over = other._values.fill, [], []

        def fills(*arguments):  # the library calls it
            inside.set()
            over.wait(60)
            fill(*arguments)

        def trains():
            steps.set()
            models.engine_losses(engine, self.data[1:3])
            was_over.append(over.is_set())

        other._values.fill = fills
        opens = threading.Thread(
            target=lambda: found.append(self.in_thread(models.engine_losses, other, self.data[:3])))
        opens.start()
        self.assertTrue(inside.wait(60))
        try:
            interrupts = threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,))
            interrupts.start()
            with self.assertRaises(KeyboardInterrupt):
                try:
                    engine.info()
                finally:
                    interrupts.join()
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                try:
                    engine.info()
                except sluice.WrongJob as error:
                    os._exit(0 if "forked" in str(error) else 1)
                os._exit(2)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            goes_on = threading.Thread(target=lambda: (steps.wait(60), time.sleep(0.2), over.set()))
            goes_on.start()
            found.append(self.in_thread(trains))
            goes_on.join()
        finally:
            over.set()
            opens.join()
        self.assertEqual((found, was_over), ([None, None], [True]))
        self.assertEqual((engine.info().step, other.info().step), (3, 3))


#: Programs that end while a step or an evaluation is open: at their last line, by an exception in
#: a forward, or while a thread trains.
ENDS = """
import sys, threading, torch, sluice, sluice.torch, torch_models as models
torch.set_num_threads(1)
data = models.batches(models.Language)
module = models.make(models.Language, dropout=0.0)
engine = sluice.torch.Engine(module, device="32MiB", host="32MiB", run_dir={run!r})
begun = threading.Event()

def train(count=10**9):
    try:
        for step in range(count):
            engine.backward(engine(data[step % 10]))
            engine.step()
            begun.set()
    finally:
        begun.set()  # a step that failed is no reason to wait

way = {way!r}
if way == "thread":
    threading.Thread(target=train, daemon=True).start()
    begun.wait()
elif way == "ended thread":
    thread = threading.Thread(target=train, args=(1,))
    thread.start()
    thread.join()
else:
    train(1)
if way == "step":
    loss = engine(data[1])
if way == "evaluation":
    with torch.no_grad():
        module.blocks[0](torch.zeros(1, 4, 32))
if way == "forward":
    module.blocks[1].register_forward_hook(lambda *arguments: sys.exit(5))
    engine(data[1])
"""


class Ends(WrongUses):
    def test_programs_that_close_nothing(self):
        ways = {"step": 0, "evaluation": 0, "forward": 5, "thread": 0, "ended thread": 0}
        for way, status in ways.items():
            with self.subTest(way=way):
                run = self.path(way)
                ended, _, errors = programs.run(ENDS.format(run=run, way=way))
                self.assertEqual(ended, status, errors)
                engine = self.engine(run_dir=run)
                engine.prepare(self.data[0])
                self.assertGreater(engine.info().step, 0)  # it was committed
                engine.close()


if __name__ == "__main__":
    unittest.main()
