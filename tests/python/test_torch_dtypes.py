"""sluice.torch.Engine with parameters of several dtypes in one module."""

import copy
import unittest

try:
    import torch
except ImportError:
    raise unittest.SkipTest("this Python has no torch") from None

import sluice
import sluice.torch
import torch_models as models
from test_torch_engine import PLACEMENTS
from torch_engines import Engines, OverTheStandIn
from torch_models import Block, Language


class Mixed(models.Odd):
    """The blocks are in bf16, all else in fp32."""

    def make_blocks(self, width):
        return torch.nn.ModuleList([Block(width).bfloat16() for _ in range(3)])

    def through(self, x):
        for block in self.blocks:
            x = block(x.bfloat16()).float()
        return x


class Adapter(torch.nn.Module):
    """An adapter in bf16 on a base in fp32."""

    def __init__(self, width):
        super().__init__()
        self.base = torch.nn.Linear(width, width).requires_grad_(False)
        self.down = torch.nn.Linear(width, 3, dtype=torch.bfloat16)
        self.up = torch.nn.Linear(3, width, dtype=torch.bfloat16)

    def forward(self, x):
        return x + self.base(x).tanh() + self.up(self.down(x.bfloat16())).float()


class Adapted(models.Odd):
    def make_blocks(self, width):
        return torch.nn.ModuleList([Adapter(width) for _ in range(3)])

    def through(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def make(kind):
    made = models.make(kind)
    if kind is Adapted:  # the adapters alone learn
        for name, parameter in made.named_parameters():
            parameter.requires_grad_("down" in name or "up" in name)
    return made


def losses_over_masters(module, data, optimize=torch.optim.AdamW):
    """Torch's loop, with a copy of each parameter in fp32 that the optimizer updates."""
    learning = [p for p in module.parameters() if p.requires_grad]
    masters = [p.detach().float().clone().requires_grad_() for p in learning]
    optimizer = optimize(masters, lr=1e-3)
    losses = []
    for batch in data:
        loss = module(batch)
        loss.backward()
        for parameter, master in zip(learning, masters):
            master.grad = parameter.grad.float()
            parameter.grad = None
        optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(learning, masters):
                parameter.copy_(master)
        losses.append(loss.item())
    return losses


def bytes_of(value):
    return value.contiguous().reshape(-1).view(torch.uint8)


class SeveralDtypes(OverTheStandIn):
    def test_masters_in_fp32(self):
        """To the bit. What learns keeps its dtype, with values that are rounded from fp32."""
        for kind in (Mixed, Adapted):
            with self.subTest(kind=kind.__name__):
                module, data = make(kind), models.batches(kind, 5)
                looped = copy.deepcopy(module)
                expected = losses_over_masters(looped, data)
                engine = self.engine(module)
                self.assertEqual(models.engine_losses(engine, data), expected)
                state = engine.state_dict()
                for name, value in looped.state_dict().items():
                    self.assertEqual(state[name].dtype, value.dtype)
                    self.assertTrue(torch.equal(bytes_of(state[name]), bytes_of(value)), name)

    def test_refusals(self):
        mixed = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).half())
        self.assert_refused("need a scale", self.engine, mixed)
        mixed[1].double()
        self.assert_refused("must be float32", self.engine, mixed)
        for key in ("bf16", "fp16"):  # a DeepSpeed configuration; to convert all would round some
            self.assert_refused(f"torch.bfloat16 and torch.float32, which the engine keeps: leave {key} out",
                                self.engine, make(Adapted), config={key: {"enabled": True}})


class Placements(Engines):
    def test_equal_bits_and_resuming(self):
        """Those of a loop that keeps its masters, so a run goes on with fp32 values."""
        data = models.batches(Mixed, 4)

        def optimize(masters, lr):
            optimizer = sluice.torch.AdamW(masters, lr=lr, host="32MiB")
            self.addCleanup(optimizer.close)
            return optimizer

        for kind in (Mixed, Adapted):
            looped = make(kind)
            losses = losses_over_masters(looped, data, optimize)
            found = [(losses, {key: bytes_of(value) for key, value in looped.state_dict().items()})]
            updates = {"schedule": {"update": "in_backward"}}  # it reads gradients where torch has them
            for config in (PLACEMENTS[1], {**PLACEMENTS[3], **updates}, PLACEMENTS[6]):
                losses, name = [], f"run{self.count}"
                for part in (data[:2], data[2:]):
                    engine = self.engine(make(kind), config=config, name=name)
                    losses += models.engine_losses(engine, part)
                    state = engine.state_dict()
                    engine.close()
                found.append((losses, {key: bytes_of(value) for key, value in state.items()}))
            for losses, state in found[1:]:
                self.assertEqual(losses, found[0][0])
                for name, value in state.items():
                    self.assertTrue(torch.equal(value, found[0][1][name]), name)

    def test_frozen_parameters_of_other_types(self):
        """As a base in bf16 below adapters in fp32. All their bits come back."""

        class Adapted(torch.nn.Module):
            def __init__(self, dtype):
                super().__init__()
                self.base = torch.nn.Linear(32, 32, dtype=dtype).requires_grad_(False)
                self.down, self.up = torch.nn.Linear(32, 3), torch.nn.Linear(3, 32)
                bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)  # all there are
                self.bits = torch.nn.Parameter(bits.view(torch.bfloat16), requires_grad=False)
                # an odd number of elements comes last
                self.gain = torch.nn.Parameter(torch.ones(3), requires_grad=False)

            def forward(self, x):
                base = self.base(x.to(self.base.weight.dtype)).to(x.dtype)
                return x + base + self.up(self.down(x) * self.gain)

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                types = (torch.bfloat16, torch.float64, torch.float32)
                self.blocks = torch.nn.ModuleList([Adapted(dtype) for dtype in types])
                self.shift = torch.nn.Parameter(torch.ones(5, 1).bfloat16(), requires_grad=False)

            def forward(self, x):
                for block in self.blocks:
                    x = block(x + self.shift)
                return x.square().mean()

        data = [torch.randn(5, 32, generator=torch.Generator().manual_seed(i)) for i in range(3)]
        torch.manual_seed(3)
        module = Model()
        looped = copy.deepcopy(module)
        learns = [p for p in looped.parameters() if p.requires_grad]
        optimizer = sluice.torch.AdamW(learns, lr=1e-3, host="32MiB")
        expected = models.loop_losses(looped, optimizer, data)
        optimizer.close()
        for config in (PLACEMENTS[1], PLACEMENTS[3]):
            engine = self.engine(copy.deepcopy(module), config=config)
            self.assertEqual(models.engine_losses(engine, data), expected)
            engine.close()
            name = f"run{self.count}"
            engine = self.engine(Model(), config=config, name=name)
            engine.prepare(data[0])
            state = engine.state_dict()
            engine.close()
            for key, value in looped.state_dict().items():
                self.assertEqual(state[key].dtype, value.dtype)
                same = torch.equal(state[key].view(torch.uint8), value.view(torch.uint8))
                self.assertTrue(same, key)
        other = Model()
        other.blocks[0].base.half()  # as many bytes, which are other numbers
        engine = self.engine(other, config=config, name=name)
        self.assertRaisesRegex(sluice.WrongJob, "other settings", engine.prepare, data[0])

    def test_bf16_learns(self):
        module = models.make(Language).bfloat16()
        losses = models.engine_losses(self.engine(module), models.batches(Language) * 3)
        self.assertLess(sum(losses[-5:]), sum(losses[:5]))


if __name__ == "__main__":
    unittest.main()
