"""Arguments and modules that sluice.torch does not take: wrong ones, ones that were changed after an
engine was made, copies, and modules that have an engine. Each is answered by a sentence that says
what to do."""

import copy
import io
import pickle
import unittest

try:
    import torch
    from torch.nn.utils import prune
except ImportError:
    raise unittest.SkipTest("this Python has no torch") from None

import sluice
import sluice.torch
import torch_models as models
from torch_models import Language
from wrong_uses import WrongUses, make


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
        self.refused("file/state cannot be used", self.engine, module, run_dir=self.path("file"))
        self.refused("12 parsecs", self.engine, module, device="12 parsecs")
        self.refused("tiers.device.budget: 1.18059162072e21 is out of range: must be below 2^63",
                     self.engine, module, device=1 << 70)
        self.refused("file/drive cannot be used", self.engine, module, nvme=[self.path("file/drive")])

    def test_another_module_than_the_runs(self):
        self.begun().close()
        frozen = make()
        frozen.blocks[0].mix.bias.requires_grad_(False)
        for module, text in ((make(width=48), "was embed.weight [64, 32] of root and is embed.weight [64, 48] of root"),
                             (make(layers=2), "was blocks.2.norm.weight [32] of blocks.2 and is none"),
                             (frozen, "was blocks.0.mix.bias [96] of blocks.0 and is blocks.0.proj.weight"),
                             (make().bfloat16(), "dtype was fp32 and is bf16")):
            self.refused(text, self.engine(module), self.data[0])

    def test_modules(self):
        module = make()
        self.refused("is a DataParallel", self.engine, torch.nn.DataParallel(module))
        self.refused("TorchScript", self.engine, torch.jit.script(torch.nn.Linear(2, 2)))
        self.refused("no shape yet", self.engine, torch.nn.LazyLinear(3))
        self.refused("has no elements", self.engine, torch.nn.Linear(0, 3))
        self.refused("must be a torch module", self.engine, module.parameters())
        self.refused("must be a torch module", self.engine, Language)
        with torch.inference_mode():
            built = make()
        self.refused("inference_mode", self.engine, built)

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

    def test_parameters_that_are_torchs_alone(self):
        module = models.make(models.Counting)
        module.turn = torch.nn.Parameter(torch.ones(8, dtype=torch.cfloat), requires_grad=False)
        engine = self.begun(module)
        module.turn.requires_grad_(True)
        self.refused('"turn" has another requires_grad', engine, self.data[1])
        module.turn.requires_grad_(False)
        module.turn.data = module.turn.data.real
        self.refused('"turn" is torch.float32, and was torch.complex64', engine, self.data[1])
        module.turn.data = torch.ones(8, dtype=torch.cfloat)
        models.engine_losses(engine, self.data[1:2])
        before, others = id(module.order), []
        del module.order
        while not others or (len(others) < 1000 and id(others[-1]) != before):  # as if it were the same one
            others.append(torch.nn.Parameter(torch.arange(16), requires_grad=False))
        module.order = others[-1]
        self.refused('the new parameter "order"', engine, self.data[1])

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

    def test_writing_through_data(self):
        """Torch does not count such writes. It refuses most of them by itself: what stands for values
        that are elsewhere is one element. Those that it allows are refused at the next call."""
        engine = self.begun()
        module = engine.module
        for name in ("norm.weight", "blocks.0.up.weight"):
            parameter = module.get_parameter(name)
            self.assertTrue(parameter.isnan().all())  # also of the root, whose last values are old
            self.assertRaisesRegex(RuntimeError, "single memory location", parameter.data.clamp_, -1, 1)
            for write in (lambda data: data.zero_(), lambda data: data[0].fill_(1)):
                write(parameter.data)
                self.refused(f'"{name}" of the unit', engine, self.data[1])
        with torch.no_grad():
            engine(self.data[1])
            module.norm.weight.data.zero_()  # it is the evaluation's copy
        losses = models.engine_losses(engine, self.data[1:3])
        expected, _ = models.plain_losses(make(), self.data[:3])
        for one, other in zip(losses, expected[1:]):
            self.assertAlmostEqual(one, other, places=5)

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
        other = make()
        other.load_state_dict(state)
        self.refused("has no values", engine.module.load_state_dict, state)
        engine.module.load_state_dict(state, assign=True)
        engine.module.load_state_dict(state)
        again = copy.deepcopy(engine.module)
        for module in (engine.module, again):
            self.assertEqual(module(self.data[0]).item(), other(self.data[0]).item())

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

if __name__ == "__main__":
    unittest.main()
