"""sluice.torch.Engine over a stand-in for the library: which units it chooses, that each step has
torch's bits, that a recording leaves no trace, and what it refuses."""

import copy
import mmap
import struct
import tempfile
import unittest
import unittest.mock

try:
    import torch
    import torch.utils.checkpoint
except ImportError:
    raise unittest.SkipTest("this Python has no torch") from None

import sluice
import torch_models as models
from sluice.torch import _recording, _units
from torch_engines import OverTheStandIn
from torch_models import Images, Language, Translation


class Simulated(OverTheStandIn):

    def test_equal_to_torch_to_the_bit(self):
        for kind in (Language, Images, Translation):
            module, data = models.make(kind), models.batches(kind)
            expected, trained = models.plain_losses(module, data)
            engine = self.engine(module)
            self.assertEqual(models.engine_losses(engine, data), expected)
            wanted = trained.state_dict()
            for name, value in engine.state_dict().items():
                self.assertTrue(torch.equal(value, wanted[name]), name)

    def test_odd_ways_to_use_units(self):
        """To the bit, too. The numbers are those of units and of stages."""
        expected = {
            models.Again: (3, 7), models.AgainReentrant: (3, 6), models.Sometimes: (3, 3), models.Rows: (2, 2),
            models.Boxes: (3, 3), models.Counting: (3, 3), models.Skipping: (3, 4), models.Hidden: (2, 3),
        }
        for kind, counts in expected.items():
            with self.subTest(kind=kind.__name__):
                engine = self.check_odd(kind)
                self.assertEqual((len(engine._holders) - 1, len(engine._turns.stages) - 1), counts)

    def check_odd(self, kind):
        module, data = models.make(kind), models.batches(kind, 5)
        losses, trained = models.plain_losses(module, data)
        engine = self.engine(module)
        self.assertEqual(models.engine_losses(engine, data), losses)
        state, wanted = engine.state_dict(), trained.state_dict()
        self.assertEqual(set(state), set(wanted))
        for name, value in state.items():
            self.assertTrue(torch.equal(value, wanted[name]), name)
        return engine

    def test_objects_around_inputs_and_outputs(self):
        """A recording leaves those of the program as they are."""

        class Boxed(models.Odd):
            def forward(self, box):
                box.tokens = (box.tokens + 1) % 64
                return [{"out": models.Box(inner=models.Box(loss=super().forward(box.tokens)))}]

            def through(self, x):
                return self.blocks[1](self.blocks[0](x))

        def train(call, backward, step):
            boxes = [models.Box(tokens=tokens) for tokens in models.batches(Boxed, 3)]
            losses = []
            for box in boxes:
                loss = call(box)[0]["out"].inner.loss
                backward(loss)
                step()
                losses.append(loss.item())
            return losses, torch.stack([box.tokens for box in boxes])

        plain = models.make(Boxed)
        optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)

        def step():
            optimizer.step()
            optimizer.zero_grad()

        plain.blocks[2].requires_grad_(False)
        losses, tokens = train(plain, torch.Tensor.backward, step)
        module = models.make(Boxed)
        module.blocks[2].requires_grad_(False)
        engine = self.engine(module)
        found_losses, found_tokens = train(engine, engine.backward, engine.step)
        self.assertEqual(found_losses, losses)
        self.assertTrue(torch.equal(found_tokens, tokens))

    def test_a_recording_leaves_what_a_module_keeps(self):
        """A tensor that learns in an attribute, a generator, one that nobody may write, and one that is
        too large for a copy."""

        class Keeping(models.Odd):
            def __init__(self):
                super().__init__()
                self.latent = torch.zeros(16, requires_grad=True)
                self.noise = torch.Generator().manual_seed(3)
                pages = mmap.mmap(file.fileno(), 64, prot=mmap.PROT_READ)
                self.table = torch.frombuffer(pages, dtype=torch.float32)
                self.count = torch.zeros(1)

            def through(self, x):
                x = x + self.latent + self.table * torch.rand(16, generator=self.noise)
                self.count += 1
                return self.blocks[2](self.blocks[1](self.blocks[0](x)))

        file = tempfile.TemporaryFile()
        self.addCleanup(file.close)
        file.write(struct.pack("16f", *range(16)))
        file.flush()
        data, plain = models.batches(Keeping, 1)[0], models.make(Keeping)
        plain(data).backward()
        engine = self.engine(models.make(Keeping))
        loss = engine(data)
        self.assertIsNone(engine.module.latent.grad)
        engine.backward(loss)
        self.assertTrue(torch.equal(engine.module.latent.grad, plain.latent.grad))
        self.assertEqual(engine.module.count.item(), 1)
        with unittest.mock.patch.object(_recording, "_KEPT_BYTES", 3):
            self.engine(models.make(Images))(models.batches(Images, 1)[0])  # it has buffers
            self.assert_refused("call register_buffer", self.engine(models.make(Keeping)), data)

    def test_graphs_and_modules_in_objects(self):
        class Within(models.Odd):
            def forward(self, box):
                x = box.first
                for block in box.model.blocks:
                    x = block(x)
                return x.square().mean()

        encoder, x = torch.nn.Linear(16, 16), torch.randn(2, 4, 16)
        plain = models.make(Within)
        plain(models.Box(first=encoder(x), model=plain)).backward()
        wanted, encoder.weight.grad = encoder.weight.grad, None
        engine = self.engine(models.make(Within))
        loss = engine(models.Box(first=encoder(x), model=engine.module))
        self.assertEqual(len(engine._turns.stages), 4)
        engine.backward(loss)
        self.assertTrue(torch.equal(encoder.weight.grad, wanted))

    def test_compiled_modules(self):
        """Also one that is compiled between steps. No compiler looks into the hooks."""
        import torch._dynamo
        from torch._dynamo.utils import counters

        data = models.batches(Language, 3)
        expected, _ = models.plain_losses(models.make(Language), data)
        blocks, whole = models.make(Language), models.make(Language)
        counters.clear()
        for number in range(2):
            blocks.blocks[number] = torch.compile(blocks.blocks[number], backend="eager")
        engine = self.engine(blocks)
        found = models.engine_losses(engine, data[:1])
        blocks.blocks[2].compile(backend="eager")
        self.assertEqual(found + models.engine_losses(engine, data[1:], None), expected)
        self.assertEqual((len(engine._holders), dict(counters["graph_break"])), (4, {}))
        self.assertGreater(counters["frames"]["ok"], 0)
        for backend in ("eager", "aot_eager"):  # the second one compiles the backward, too
            engine = self.engine(torch.compile(copy.deepcopy(whole), backend=backend))
            self.assertEqual(models.engine_losses(engine, data), expected)
        torch._dynamo.reset()

    def test_what_cannot_be_a_unit_is_in_the_root(self):
        for kind, unfit in ((models.Peeking, {"blocks.1"}), (models.Turning, {"blocks.0", "blocks.1"})):
            with self.subTest(kind=kind.__name__), self.assertWarnsRegex(UserWarning, "outside of the budgets"):
                self.assertEqual(set(self.check_odd(kind)._unfit), unfit)

    def test_random_numbers_of_numpy(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("this Python has no numpy")

        class Masked(models.Odd):
            def through(self, x):
                return self.blocks[0](x * float(numpy.random.rand()))

        numpy.random.seed(1)
        expected, _ = models.plain_losses(models.make(Masked), models.batches(Masked, 3))
        numpy.random.seed(1)
        engine = self.engine(models.make(Masked))
        self.assertEqual(models.engine_losses(engine, models.batches(Masked, 3)), expected)

    def test_a_recording_makes_the_copies_of_a_step(self):
        """The root's parameters and all gradients."""
        engine = self.engine(models.make(Language))
        with unittest.mock.patch.object(_recording._Copies, "_copy") as copy:
            recorder = engine._record_once((models.batches(Language)[0],), {}, True)
        copied = sorted(call.args[0].numel() for call in copy.call_args_list)
        slots = [slot for holder in engine._holders for slot in holder.slots]
        expected = sorted(slot.elems for slot in slots + engine._root.slots)
        self.assertEqual(copied, expected)
        self.assertIn(("root", "backward"), recorder.seconds)
        self.assertTrue(all(slot.parameter.grad is None for slot in slots))

    def test_times_are_those_of_later_recordings(self):
        engine = self.engine(models.make(Language))
        real, recorded = engine._record_once, []

        def record_once(args, kwargs, checks):
            recorder = real(args, kwargs, checks)
            seconds = 0.5 if checks else 0.1 * (1 + len(recorded))  # 0.2, 0.3, 0.4
            recorder.seconds = {key: seconds for key in recorder.seconds}
            recorded.append((checks, recorder))
            return recorder

        engine._record_once = record_once
        engine.prepare(models.batches(Language)[0])
        self.assertEqual([checks for checks, _ in recorded], [True, False, False, False])
        self.assertEqual({round(s, 6) for s in recorded[0][1].seconds.values()}, {0.3})

    def test_a_state_has_one_copy_of_a_block_that_is_used_again(self):
        engine, visited = self.engine(models.make(models.Again)), []
        models.engine_losses(engine, models.batches(models.Again, 1))
        engine._evaluation().each(lambda holder, use: visited.append(holder.name))
        self.assertEqual(sorted(visited), ["", "blocks.0", "blocks.1", "blocks.2"])

    def test_recording_leaves_no_trace(self):
        module, data = models.make(Images), models.batches(Images)
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        engine = self.engine(module)
        torch.manual_seed(11)
        state = torch.get_rng_state()
        engine._record((data[0],), {})
        self.assertTrue(torch.equal(torch.get_rng_state(), state))
        for name, buffer in module.named_buffers():
            self.assertTrue(torch.equal(buffer, before[name]), name)
        self.assertTrue(all(p.grad is None for p in module.parameters()))

    def test_units(self):
        names = [h.name for h in self.engine(models.make(Language))._holders]
        self.assertEqual(names, ["", "blocks.0", "blocks.1", "blocks.2"])
        names = [h.name for h in self.engine(models.make(Language), units=["blocks"])._holders]
        self.assertEqual(names, ["", "blocks"])
        inner = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
        nested = torch.nn.Sequential(torch.nn.Linear(4, 8), inner, torch.nn.Linear(8, 4))
        names = [h.name for h in self.engine(nested)._holders]  # the middle has most of the model
        self.assertEqual(names, ["", "0", "1.0", "1.1", "1.2", "2"])
        nested[1], nested[2] = inner[:1], torch.nn.Linear(8, 2)  # a list of one is not better
        self.assertEqual([h.name for h in self.engine(nested)._holders], ["", "0", "1", "2"])
        some = self.engine(models.make(Language), units=lambda name, m: name.endswith("mix"))
        self.assertEqual(len(some._holders), 4)
        short = [_units._short(first + "x" * 200) for first in "ab"]  # the library refuses longer names
        self.assertEqual((len(set(short)), [len(name) for name in short]), (2, [95, 95]))


class Refusals(OverTheStandIn):
    def test_before_the_first_step(self):
        language = models.make(Language)
        data = models.batches(Language)
        self.assert_refused("must be a torch module", self.engine, "x")
        self.assert_refused("no parameters to train", self.engine, torch.nn.ReLU())
        self.assert_refused("must be float32", self.engine, torch.nn.Linear(2, 2).double())
        self.assert_refused("view_as_real", self.engine, torch.nn.Linear(2, 2, dtype=torch.cfloat))
        frozen = models.make(Language).requires_grad_(False)
        self.assert_refused("no parameter of the module learns", self.engine, frozen)
        self.assert_refused("has no part", self.engine, language, units=["nothing"])
        self.assert_refused("is a part of", self.engine, language, units=["blocks.0", "blocks.0.up"])
        self.assert_refused("must be a list of names", self.engine, language, units="blocks.0")
        self.assert_refused("cannot be read", self.engine, language, config="/nowhere.json")
        self.assert_refused("give it once", self.engine, language,
                            config={"run": {"dir": "elsewhere"}})
        self.assert_refused("is unknown", self.engine, language, groups=lambda n, p: {"speed": 1})
        engine = self.engine(language)
        self.assert_refused("after the first call", engine.plan)
        self.assert_refused("after engine.backward", engine.step)
        self.assert_refused("call engine(...)", engine.backward, torch.zeros(1))
        with torch.no_grad():
            self.assert_refused("records a step", engine, data[0])

    def test_in_a_step(self):
        data = models.batches(Language)
        engine = self.engine(models.make(Language))
        loss = engine(data[0])
        self.assert_refused("loss of one element", engine.backward, torch.zeros(3))
        self.assert_refused("has had no backward", engine, data[1])
        self.assert_refused('reached the unit "root": call engine.backward(loss), not loss.backward()', loss.backward)
        engine = self.engine(models.make(Language))
        models.engine_losses(engine, data[:1])
        self.assert_refused("outside of a step", engine.module.blocks[0], torch.zeros(1, 4, 32))
        self.assert_refused("takes no closure", engine.optimizer.step, lambda: 1.0)
        self.assert_refused("load weights before", engine.load_state_dict, {})

    def test_a_penalty_of_weights_outside_of_the_forward(self):
        """The weights have no values there, so the loss is not a number."""
        data = models.batches(Language)
        engine = self.engine(models.make(Language))
        models.engine_losses(engine, data[:1])
        loss = engine(data[1])
        penalized = loss + engine.module.blocks[1].up.weight.abs().sum()
        self.assert_refused('"blocks.1.up.weight" outside of a call of its unit "blocks.1"', engine.backward, penalized)
        engine.backward(loss)  # the run is as it was
        engine.step()
        loss = engine(data[2]) * float("nan")  # of another reason
        engine.backward(loss)

        class Aside(models.Odd):
            def through(self, x):
                for block in self.blocks:
                    x = block(x)
                    block.aside = x.mean()
                return x

        data = models.batches(Aside)
        engine = self.engine(models.make(Aside))
        loss = engine(data[0]) + engine.module.blocks[1].aside * float("nan")  # computed in the unit
        engine.backward(loss)

    def test_other_orders(self):
        class Turned(Language):
            is_turned = False

            def forward(self, tokens):
                if self.is_turned:
                    self.blocks = torch.nn.ModuleList(list(self.blocks)[::-1])
                return super().forward(tokens)

        data = models.batches(Language)
        module = models.make(Turned)
        engine = self.engine(module)
        models.engine_losses(engine, data[:1])
        module.is_turned = True
        self.assert_refused('"blocks.1" after "blocks.2"', engine, data[1])
        self.assert_refused("the order of that step", engine, data[1])  # it takes no more steps

    def test_often(self):
        class Often(models.Odd):
            count = 33

            def through(self, x):
                for _ in range(self.count):
                    x = self.blocks[0](x)
                return x

        data = models.batches(Often)
        engine = self.engine(models.make(Often), units=["blocks.0"])
        self.assert_refused("is used more than 32 times", engine, data[0])
        module = models.make(Often)
        module.count = 2
        engine = self.engine(module, units=["blocks.0"])
        models.engine_losses(engine, data[:1])
        module.count = 3
        self.assert_refused('"blocks.0" after "blocks.0 (use 2)"', engine, data[1])

    def test_within_another(self):
        class Nested(models.Odd):
            def make_blocks(self, width):
                blocks = super().make_blocks(width)
                blocks[0].register_forward_hook(lambda module, inputs, x: blocks[1](x))
                return blocks

            def through(self, x):
                return self.blocks[0](x)

        text, data = '"blocks.1" is called within the unit "blocks.0"', models.batches(Nested)
        engine = self.engine(models.make(Nested), units=["blocks.0", "blocks.1"])
        self.assert_refused(text, engine, data[0])

        class Later(models.Odd):
            is_nested = False

            def through(self, x):
                if self.is_nested:
                    self.blocks[0].dropout.register_forward_hook(lambda module, inputs, x: self.blocks[1](x))
                return self.blocks[0](x)

        engine = self.engine(models.make(Later))
        models.engine_losses(engine, data[:1])
        with torch.no_grad():
            expected = engine(data[1]).item()
            engine.module.is_nested = True
            self.assert_refused(text, engine, data[1])
            engine.module.is_nested = False
            engine.module.blocks[0].dropout._forward_hooks.clear()
            self.assertEqual(engine(data[1]).item(), expected)
        models.engine_losses(engine, data[1:2])

    def test_configurations(self):
        data = models.batches(Language)
        self.assert_refused("call module.to", self.engine, models.make(Language),
                            config={"bf16": {"enabled": True}})
        self.assert_refused("numbers alone", self.engine, models.make(Language),
                            optimizer=torch.optim.SGD([torch.zeros(1)], 0.1))
        module = models.make(Language)
        engine = self.engine(module)
        module.blocks[0].up.weight.requires_grad_(False)
        self.assert_refused("another requires_grad", engine, data[0])

    def test_views_of_parameters(self):
        class Table(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.rows = torch.nn.Parameter(torch.randn(16, 32))

            def forward(self, count):
                return self.rows[:count]

        class Positions(Language):
            def __init__(self):
                super().__init__()
                self.table = Table()

            def forward(self, tokens):
                x = self.embed(tokens) + self.table(tokens.shape[1])
                for block in self.blocks:
                    x = block(x)
                return self.head(x).square().mean()

        engine = self.engine(models.make(Positions), units=["table", "blocks.0"])
        self.assert_refused("returns a view", engine, models.batches(Language)[0])

    def test_parameters_that_a_forward_changes(self):
        class Clamping(torch.nn.Linear):
            how = "clamp"

            def forward(self, x):
                with torch.no_grad():
                    if self.how == "clamp":
                        self.weight.clamp_(-1, 1)
                    elif self.how == "data":
                        self.weight.data.mul_(0.5)
                    elif self.how == "replace":
                        self.weight.data = self.weight.data * 0.5
                return super().forward(x)

        def make(how, where):
            module = models.make(Language)
            part = Clamping(32, 64 if where == "unit" else 32)
            part.how = how
            if where == "unit":
                module.blocks[1].up = part
            else:
                module.norm = torch.nn.Sequential(module.norm, part)
            return module

        data = models.batches(Language)
        for how in ("clamp", "data"):
            engine = self.engine(make(how, "unit"))
            self.assert_refused('"blocks.1.up.weight" of the unit "blocks.1" was changed', engine, data[0])
            engine = self.engine(make(how, "root"), units=["blocks.0"])
            self.assert_refused('"norm.1.weight" of the unit "root" was changed', engine, data[0])
        for how in ("clamp", "replace"):  # only later
            module = make("", "unit")
            engine = self.engine(module)
            models.engine_losses(engine, data[:2])
            module.blocks[1].up.how = how
            self.assert_refused('"blocks.1.up.weight" of the unit "blocks.1" was changed', engine, data[2])
        engine = self.engine(models.make(Language))  # between steps
        models.engine_losses(engine, data[:1])
        with torch.no_grad():
            with self.assertRaisesRegex(RuntimeError, "single memory location"):
                engine.module.norm.weight.clamp_(-1, 1)
            engine.module.norm.weight.fill_(1)
        self.assert_refused('"norm.weight" of the unit "root" was changed', engine, data[1])

    def test_one_checkpoint_around_several_units(self):
        """Units that are chosen are left out, one by one, until the others can be so."""
        data = models.batches(Language)
        for reentrant in (False, True):
            class Wide(Language):
                def forward(self, tokens):
                    def all_blocks(x):
                        for block in self.blocks:
                            x = block(x)
                        return x

                    x = torch.utils.checkpoint.checkpoint(
                        all_blocks, self.embed(tokens), use_reentrant=reentrant)
                    return self.head(self.norm(x)).square().mean()

            module = models.make(Wide, dropout=0.0)
            expected, _ = models.plain_losses(module, data)
            named = self.engine(copy.deepcopy(module), units=["blocks.0", "blocks.1", "blocks.2"])
            self.assert_refused("give each unit a checkpoint of its own", named, data[0])
            engine = self.engine(module)
            with self.assertWarnsRegex(UserWarning, "2 of the units.*comes back to the unit"):
                self.assert_near(models.engine_losses(engine, data), expected)

    def test_numbers_stay_with_units_when_others_go_into_the_root(self):
        class Wide(Language):
            def forward(self, tokens):
                x = self.blocks[0](self.embed(tokens))
                x = torch.utils.checkpoint.checkpoint(
                    lambda y: self.blocks[2](self.blocks[1](y)), x, use_reentrant=False)
                return self.head(self.norm(x)).square().mean()

        def rates(name, parameter):
            return {"lr": int(name.split(".")[1]) + 1.0} if name.startswith("blocks.") else {}

        engine = self.engine(models.make(Wide, dropout=0.0), groups=rates)
        with self.assertWarnsRegex(UserWarning, "1 of the units"):
            engine.prepare(models.batches(Language)[0])
        names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
        for group in engine.optimizer.param_groups[1:]:
            blocks = {names[id(parameter)].split(".")[1] for parameter in group["params"]}
            self.assertEqual(blocks, {str(int(group["lr"]) - 1)})

    def test_gradients_of_a_refused_backward_do_not_count(self):
        engine = self.engine(models.make(Language, dropout=0.0))
        loss = engine(models.batches(Language)[0])
        self.assert_refused("not this engine's", lambda: loss.backward(retain_graph=True))
        self.assertTrue(all(p.grad is None for p in engine.module.parameters()))

    def test_a_buffer_that_the_recording_puts_over_another(self):
        class Aliasing(Language):
            def __init__(self, **options):
                super().__init__(**options)
                self.register_buffer("table", torch.arange(8.0))
                self.register_buffer("seen", torch.full((2,), -7.0))

            def forward(self, tokens):
                self.seen.data = self.table[:4]
                return super().forward(tokens)

        module = models.make(Aliasing, dropout=0.0)
        self.engine(module)(models.batches(Language)[0])
        self.assertEqual(module.table.tolist(), list(range(8)))

    def test_a_buffer_that_the_recording_gives_another_size(self):
        class Observing(Language):
            def __init__(self, **options):
                super().__init__(**options)
                self.register_buffer("least", torch.tensor([]))

            def forward(self, tokens):
                loss = super().forward(tokens)
                if self.least.numel() == 0:
                    self.least.resize_(1).fill_(1.0)
                self.least.mul_(0.5)
                return loss * self.least.sum()

        data, module = models.batches(Language, 3), models.make(Observing, dropout=0.0)
        expected, _ = models.plain_losses(module, data)
        self.assert_near(models.engine_losses(self.engine(module), data), expected)

    def test_gradients_of_functions_in_the_forward(self):
        class Sloping(Language):
            def forward(self, tokens):
                x = self.embed(tokens)
                return torch.func.grad(lambda y: self.head(y).square().mean())(x).square().sum()

        self.assert_refused("use torch.autograd.grad", self.engine(models.make(Sloping)), models.batches(Language)[0])

    def test_changes_in_place(self):
        class Adds(Language):
            def forward(self, tokens):
                x = self.embed(tokens).exp()
                y = x * 2
                x.add_(1)
                return self.blocks[0](y).sum() + super().forward(tokens) * 0

        self.assertRaises(Exception, self.engine(models.make(Adds), units=["blocks.1"]),
                          models.batches(Language)[0])

    def test_the_modules_own_state_dict(self):
        engine = self.engine(models.make(Language))
        models.engine_losses(engine, models.batches(Language)[:1])
        self.assert_refused("engine.state_dict()", engine.module.state_dict)
        self.assertEqual(len(engine.state_dict()), 34)

    def test_forgotten_calls(self):
        data = models.batches(Language)
        engine = self.engine(models.make(Language))
        engine.backward(engine(data[0]))
        self.assert_refused("engine.step() is missing", engine, data[1])
        engine.step()
        engine(data[1])
        engine.skip()
        models.engine_losses(engine, data[1:2])

    def test_elsewhere(self):
        class Peeks(Language):
            def forward(self, tokens):
                return super().forward(tokens) + self.blocks[1].up.weight.square().mean()

        engine = self.engine(models.make(Peeks), units=["blocks.1"])
        self.assert_refused('"blocks.1.up.weight" is used', engine, models.batches(Language)[0])

if __name__ == "__main__":
    unittest.main()
