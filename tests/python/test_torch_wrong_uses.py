"""Wrong uses of sluice.torch that a program may make by mistake: each is answered by a sentence
that says what to do, or does what was meant. None hangs, and none leaves a run open."""

import copy
import gc
import io
import itertools
import math
import os
import pickle
import resource
import signal
import sys
import tempfile
import threading
import unittest
import unittest.mock

try:
    import torch
    from torch.nn.utils import prune
except ImportError:
    raise unittest.SkipTest("this Python has no torch") from None

import programs
import sluice
import sluice.torch
import torch_models as models
from simulated_core import open_simulated
from torch_models import Language


def make(kind=Language, **options):
    return models.make(kind, dropout=0.0, **options)


class WrongUses(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(2)
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = scratch.name
        self.data = models.batches(Language)

    def path(self, name):
        return os.path.join(self.directory, name)

    def engine(self, module=None, **options):
        options.setdefault("run_dir", self.path("run"))
        options.setdefault("device", "32MiB")
        engine = sluice.torch.Engine(make() if module is None else module, host="32MiB", **options)
        self.addCleanup(engine.close)
        return engine

    def begun(self, module=None, **options):
        """An engine that has made a step."""
        engine = self.engine(module, **options)
        models.engine_losses(engine, self.data[:1])
        return engine

    def optimizer(self, params=None, **options):
        params = make().parameters() if params is None else params
        made = sluice.torch.AdamW(params, host="64MiB", **options)
        self.addCleanup(made.close)
        return made

    def refused(self, text, function, *arguments, **options):
        with self.assertRaises(sluice.WrongJob) as caught:
            function(*arguments, **options)
        self.assertIn(text, str(caught.exception))

    def in_thread(self, function, *arguments):
        """Calls the function in another thread, which ends. Returns the exception or None."""
        found = []

        def call():
            try:
                function(*arguments)
            except sluice.Error as error:
                found.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return found[0] if found else None

    def step_is(self, expected, **options):
        """The run can be opened, and is at this step."""
        engine = self.engine(**options)
        engine.prepare(self.data[0])
        self.assertEqual(engine.info().step, expected)
        engine.close()


class Arguments(WrongUses):
    def test_of_an_engine(self):
        module = make()
        self.refused("run_dir is int", self.engine, module, run_dir=3)
        self.refused("no path", self.engine, module, run_dir="")
        self.refused("nvme is int", self.engine, module, nvme=3)
        self.refused("nvme[0] is int", self.engine, module, nvme=[3])
        self.refused("config (if it is no dict) is list", self.engine, module, config=[1])
        self.refused("config: tiers is None", self.engine, module, config={"tiers": None})
        self.refused("optimizer must be like", self.engine, module, config={"optimizer": "adam"})
        self.refused("AdamW: lr is 'x'", self.engine, module, optimizer=sluice.AdamW(lr="x"))
        self.refused("betas is 0.9", self.engine, module, optimizer=sluice.AdamW(betas=0.9))
        self.refused("optimizer is AdamW, and must be sluice.AdamW(", self.engine, module,
                     optimizer=sluice.AdamW)
        self.refused("groups is int", self.engine, module, groups=3)
        self.refused("groups returns NoneType", self.engine, module, groups=lambda name, p: None)
        self.refused("lr is 'x'", self.engine, module, groups=lambda name, p: {"lr": "x"})
        self.refused('units is "3"', self.engine, module, units=3)
        self.refused("units[0] is int", self.engine, module, units=[3])
        self.refused("host is", sluice.torch.Engine, module, host=1.5, run_dir=self.path("run"))
        self.refused("must be a list of names", self.engine, module, units=module.blocks[0])
        with open(self.path("file"), "w"):
            pass
        self.refused("file/state cannot be used", self.engine(run_dir=self.path("file")), self.data[0])

    def test_modules(self):
        module = make()
        self.refused("OptimizedModule", self.engine, torch.compile(module))
        self.refused("is a DataParallel", self.engine, torch.nn.DataParallel(module))
        self.refused("TorchScript", self.engine, torch.jit.script(torch.nn.Linear(2, 2)))
        self.refused("no shape yet", self.engine, torch.nn.LazyLinear(3))
        self.refused("has no elements", self.engine, torch.nn.Linear(0, 3))
        self.refused("must be a torch module", self.engine, module.parameters())
        self.refused("must be a torch module", self.engine, Language)
        with torch.inference_mode():
            built = make()
        self.refused("inference_mode", self.engine, built)
        module.compile()
        self.refused("is compiled", self.engine, module)

    def test_of_an_optimizer(self):
        module = make()
        self.refused("state is", self.optimizer, state=[])
        self.refused("give module.parameters()", self.optimizer, module)
        self.refused("AdamW: lr is 'x'", self.optimizer, lr="x")
        self.refused("nvme is int", self.optimizer, nvme=3)
        self.refused("run_dir is int", self.optimizer, run_dir=3)
        self.refused("give run_dir", self.optimizer, commit_every=3)
        self.refused("lr is nan", self.optimizer, lr=float("nan"))
        empty = torch.nn.Linear(2, 2, device="meta")
        self.refused("is on meta", self.optimizer, empty.parameters())
        self.refused("no shape yet", self.optimizer, torch.nn.LazyLinear(3).parameters())
        self.assertRaisesRegex(ValueError, "empty parameter list", self.optimizer, [])
        own = self.optimizer(parameter for parameter in module.parameters())
        module(self.data[0]).backward()
        own.step()

    def test_of_init(self):
        init = sluice.torch.init
        self.refused("must be a function", init, None)
        self.refused("must be a function", init, make())
        self.refused("dtype is bf16", init, Language, dtype="bf16")
        self.refused("seed is str", init, Language, seed="x")
        self.refused("checkpoint is int", init, Language, checkpoint=3)
        weights = []
        for seed in (0, 1, 1 << 32, 1 << 40, -1, 0):
            module = init(lambda: torch.nn.Linear(512, 256), seed=seed)
            values = sluice.torch._init.values_of(module)
            made = [values[id(p)] for p in (module.weight, module.bias)]
            flat = [(value() if callable(value) else value).flatten() for value in made]
            weights.append((flat[0][0].item(), flat[1][0].item()))
        self.assertEqual(len(set(weights)), 5)
        self.assertEqual(len({bias for _, bias in weights}), 5)
        self.assertEqual(len({weight for weight, _ in weights}), 5)
        self.assertEqual(weights[0], weights[-1])
        module = init(lambda: Language(width=512, dropout=0.0), seed=1 << 40)
        engine = self.engine(module, device="256MiB")
        models.engine_losses(engine, self.data[:1])


class Changes(WrongUses):
    """Of a module after its engine was made."""

    def test_parameters_that_are_replaced_or_added(self):
        engine = self.begun()
        engine.module.blocks[0].up.weight = torch.nn.Parameter(torch.zeros(64, 32))
        self.refused('the new parameter "blocks.0.up.weight"', engine, self.data[1])
        engine.close()
        engine = self.begun(run_dir=self.path("added"))
        engine.module.extra = torch.nn.Linear(2, 2)
        self.refused('the new parameter "extra.weight"', engine, self.data[1])
        del engine.module.extra
        models.engine_losses(engine, self.data[1:2])
        engine.module.norm.bias = None
        self.refused('has lost the parameter "norm.bias"', engine, self.data[1])

    def test_another_dtype_or_device(self):
        engine = self.begun()
        engine.module.bfloat16()
        self.refused("is torch.bfloat16, and was torch.float32", engine, self.data[1])
        engine.close()
        engine = self.begun(run_dir=self.path("meta"))
        engine.module.to("meta")
        self.refused("change the module before", engine, self.data[1])

    def test_between_forward_and_backward(self):
        engine = self.begun()
        loss = engine(self.data[1])
        engine.module.double()
        self.refused("is torch.float64, and was torch.float32", engine.backward, loss)
        engine.module.float()
        self.refused("was changed", engine.backward, loss)
        engine.module.blocks[0].requires_grad_(False)
        self.refused("requires_grad", engine.backward, loss)
        engine.module.blocks[0].requires_grad_(True)
        engine.module.norm.weight.data = torch.zeros(32)
        self.refused('"norm.weight" of the unit "root" was changed', engine.backward, loss)
        engine.backward(loss)
        engine.step()
        after = models.engine_losses(engine, self.data[2:3])
        engine.close()
        expected, _ = models.plain_losses(make(), self.data[:3])
        self.assertAlmostEqual(loss.item(), expected[1], places=5)
        self.assertAlmostEqual(after[0], expected[2], places=5)
        self.step_is(3)

    def test_within_a_forward_or_backward(self):
        def in_a_forward(engine, convert):
            engine.module.blocks[1].register_forward_hook(lambda *arguments: convert())
            engine(self.data[1])

        def in_a_backward(engine, convert):
            loss = engine(self.data[1])
            loss.register_hook(lambda gradient: convert())
            engine.backward(loss)

        for where in (in_a_forward, in_a_backward):
            engine = self.begun(run_dir=self.path(where.__name__))
            self.refused("is torch.float16, and was", where, engine,
                         lambda: engine.module.half() and None)
            self.refused("is torch.float16, and was", engine, self.data[2])
            engine.close()
            self.step_is(1, run_dir=self.path(where.__name__))

    def test_between_evaluations(self):
        engine = self.begun()
        with torch.no_grad():
            engine(self.data[1])
            engine.module.double()
            self.refused("is torch.float64, and was torch.float32", engine, self.data[1])
            engine.module.float()
            self.refused("was changed", engine, self.data[1])

    def test_of_the_root_while_an_evaluation_is_open(self):
        """Also where the program calls the module, or a part of it, and not the engine."""
        engine = self.begun()
        module, hidden = engine.module, torch.ones(1, 4, 32)
        with torch.no_grad():
            expected, normed = engine(self.data[1]).item(), module.norm(hidden)

            def calls(text):
                self.refused(text, module.norm, hidden)
                self.refused(text, module, self.data[1])

            module.double()
            calls("is torch.float64, and was torch.float32")
            module.half()
            calls("is torch.float16, and was torch.float32")
            module.float()
            self.refused("was changed", module.norm, hidden)
            self.refused("was changed", engine, self.data[1])  # the units
            self.assertTrue(torch.equal(module.norm(hidden), normed))  # the run's values again
            module.norm.requires_grad_(False)
            calls("requires_grad")
            module.norm.requires_grad_(True)
            kept, module.norm.weight = module.norm.weight, torch.nn.Parameter(torch.zeros(32))
            self.refused('the new parameter "norm.weight"', module.norm, hidden)
            self.refused('the new parameter "norm.weight"', engine, self.data[1])
            module.norm.weight = kept
            up = module.blocks[1].up
            kept, up.weight = up.weight, torch.nn.Parameter(torch.zeros(64, 32))
            self.refused('the new parameter "blocks.1.up.weight"', module.blocks[1], hidden)
            up.weight = kept
            self.assertEqual(module(self.data[1]).item(), expected)
        models.engine_losses(engine, self.data[1:2])

    def test_pruning_it(self):
        """Values that are elsewhere have no importance: a mask of them would mean nothing."""
        engine = self.begun()
        up = engine.module.blocks[0].up
        prune.l1_unstructured(up, "weight", 0.5)
        text = 'has the parameter "blocks.0.up.weight" as "blocks.0.up.weight_orig"'
        self.refused(text, engine, self.data[1])
        with torch.no_grad():
            self.refused(text, engine.module.blocks[0], torch.ones(1, 4, 32))
        engine.close()
        module = make()
        prune.l1_unstructured(module.blocks[0].up, "weight", 0.5)  # before the engine it counts
        mask = module.blocks[0].up.weight_mask.clone()
        engine = self.begun(module, run_dir=self.path("pruned"))
        state = engine.state_dict()
        self.assertTrue(torch.equal(state["blocks.0.up.weight_mask"], mask))
        self.assertEqual(mask.mean().item(), 0.5)

    def test_requires_grad_for_a_step(self):
        engine = self.begun()
        engine.module.blocks[0].requires_grad_(False)
        self.refused("requires_grad", engine, self.data[1])
        engine.module.blocks[0].requires_grad_(True)
        models.engine_losses(engine, self.data[1:2])

    def test_compiling_it(self):
        engine = self.begun()
        engine.module.blocks[1].compile()
        self.refused('"blocks.1" is compiled', engine, self.data[1])

    def test_loading_into_it(self):
        engine = self.begun()
        state = engine.state_dict()
        torch.nn.init.zeros_(engine.module.blocks[0].up.weight)
        changed = '"blocks.0.up.weight" of the unit "blocks.0" was changed'
        self.refused(changed, engine, self.data[1])
        self.refused("load weights before", engine.module.load_state_dict, state)
        self.refused("load weights before", engine.module.blocks[0].load_state_dict, {})
        self.refused("engine.state_dict()", engine.module.blocks[0].state_dict)
        models.engine_losses(engine, self.data[1:2])

    def test_of_an_optimizers_parameters(self):
        module = make()
        module.blocks[0].requires_grad_(False)
        own = self.optimizer(module.parameters())
        module(self.data[0]).backward()
        own.step()
        module.blocks[0].requires_grad_(True)
        module(self.data[0]).backward()
        self.refused("make a new optimizer", own.step)
        module.blocks[0].requires_grad_(False)
        own.step()


class Copies(WrongUses):
    def test_of_engines_and_optimizers(self):
        engine, own = self.engine(), self.optimizer()
        for item in (engine, engine.optimizer, own):
            self.refused("cannot be copied or pickled", copy.deepcopy, item)
            self.refused("cannot be copied or pickled", copy.copy, item)
            self.refused("cannot be copied or pickled", pickle.dumps, item)

    def test_of_modules(self):
        engine = self.engine()
        before = copy.deepcopy(engine.module)  # its values are there, and it is nobody's
        stored = pickle.loads(pickle.dumps(engine.module))
        models.engine_losses(engine, self.data[:1])
        self.assertEqual(before(self.data[0]).item(), stored(self.data[0]).item())
        before(self.data[0]).backward()
        for item in (engine.module, engine.module.blocks[0]):
            self.refused("cannot be copied or pickled", copy.deepcopy, item)
            self.refused("cannot be copied or pickled", torch.save, item, io.BytesIO())
        state = engine.state_dict()
        engine.close()
        self.refused("has no values", copy.deepcopy, engine.module)
        engine.module.load_state_dict(state, assign=True)
        again = copy.deepcopy(engine.module)
        self.assertEqual(again(self.data[0]).item(), engine.module(self.data[0]).item())

    def test_two_engines_of_one_module(self):
        module = make()
        first = self.engine(module, run_dir=self.path("first"))
        engine = self.begun(module)
        self.refused("is closed", first, self.data[0])
        self.refused("has an engine that is open", self.engine, module, run_dir=self.path("other"))
        models.engine_losses(engine, self.data[1:2])
        engine.close()
        self.refused("has no values of its own", self.optimizer, module.parameters())


    def test_engines_of_a_part_and_of_a_parent(self):
        module = make()
        around = torch.nn.Sequential(module)
        engine = self.begun(module)
        for other, text in ((around, 'the part "0" of this module has an engine that is open'),
                            (module.blocks, "this module is a part of a Language that has"),
                            (module.embed, "this module is a part of a Language that has"),
                            (torch.nn.ParameterList([module.norm.weight]),
                             "shares parameters with a Language that has")):
            self.refused(text, self.engine, other, run_dir=self.path("other"))
        models.engine_losses(engine, self.data[1:2])
        engine.close()
        module = make()
        never_called = self.engine(module.blocks, run_dir=self.path("never"))
        models.engine_losses(self.engine(module, run_dir=self.path("whole")), self.data[:1])
        self.refused("is closed", never_called, self.data[0])


class Steps(WrongUses):
    def test_losses(self):
        engine = self.begun()
        loss = engine(self.data[1])
        engine.backward(loss)
        self.refused("outside of a step", engine.backward, loss)
        engine.step()
        engine(self.data[2])
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

    @unittest.mock.patch("sluice.torch._engine.return_free_memory", lambda: None)
    @unittest.mock.patch("sluice.torch._engine._REPEATS", 0)
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
                engine = sluice.torch.Engine(make(), device="32MiB", host="32MiB", run_dir="none")
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
