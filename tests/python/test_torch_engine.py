"""sluice.torch.Engine beside plain PyTorch: losses, placements, and resuming."""

import copy
import gc
import json
import os
import shutil
import struct
import time
import unittest
import unittest.mock

try:
    import torch
    import torch.utils.checkpoint
except ImportError:
    raise unittest.SkipTest("this Python has no torch") from None

import sluice
import sluice.torch
import torch_models as models
from sluice.torch import _turns
from torch_engines import Engines
from torch_models import Images, Language, Translation

PLACEMENTS = [
    {},
    {"tiers": {"place": {"params": "device", "grads": "device", "optimizer": "device"}}},
    {"tiers": {"place": {"params": "host", "grads": "host", "optimizer": "host"}}},
    {"tiers": {"place": {"params": "nvme", "grads": "nvme", "optimizer": "nvme"}}},
    {"tiers": {"place": {"params": "host", "grads": "nvme", "optimizer": "nvme"}}},
    {"tiers": {"place": {"params": "nvme", "grads": "host", "optimizer": "host"}}},
    {"tiers": {"place": {"params": "device", "grads": "host", "optimizer": "nvme"}}},
    {"tiers": {"place": {"optimizer": "nvme"}}, "schedule": {"update": "after_backward"}},
    {"tiers": {"place": {"optimizer": "nvme"}}, "schedule": {"update": "in_next_forward"}},
    {"tiers": {"place": {"optimizer": "host"}}, "schedule": {"tile_elems": 16384}},
]


class Losses(Engines):
    def check(self, kind, accumulation=1, clip=0.0, update="auto", **options):
        module = models.make(kind, **options)
        data = models.batches(kind)
        expected, trained = models.plain_losses(module, data, accumulation, clip)
        config = {"gradient_accumulation_steps": accumulation, "gradient_clipping": clip,
                  "schedule": {"update": update}}
        engine = self.engine(module, config=config)
        self.assert_near(models.engine_losses(engine, data), expected)
        found, wanted = engine.state_dict(), trained.state_dict()
        self.assertEqual(set(found), set(wanted))
        for name, value in wanted.items():
            self.assertEqual(found[name].shape, value.shape)
            if value.dim() > 1:  # gradients of some biases are zero but for rounding
                self.assertLessEqual(float((found[name] - value).abs().max()), 1e-4, name)
        engine.close()

    def test_language(self):
        self.check(Language)

    def test_images(self):
        self.check(Images)

    def test_translation(self):
        self.check(Translation)

    def test_equal_to_a_loop_over_the_optimizer_alone(self):
        """To the bit, also where a ReLU after a batch norm makes more of each rounding."""
        for kind in (Language, Images, Translation):
            module, data = models.make(kind), models.batches(kind)
            looped = copy.deepcopy(module)
            optimizer = sluice.torch.AdamW(looped.parameters(), lr=1e-3, host="32MiB")
            expected = models.loop_losses(looped, optimizer, data)
            optimizer.close()
            engine = self.engine(module)
            self.assertEqual(models.engine_losses(engine, data), expected)
            wanted = looped.state_dict()
            for name, value in engine.state_dict().items():
                self.assertTrue(torch.equal(value, wanted[name]), name)
            engine.close()

    def test_lent_gradients_give_the_bits_of_sums(self):
        """Updates in the backward read gradients where torch has them, the root's too."""
        data, found, held, lend = models.batches(Language, 4), [], [], _turns.Lending.lend

        def lend_and_count(lending, core, unit):
            lend(lending, core, unit)
            held.append(len(lending._held))

        # the update of a unit may run until the second turn after the unit's own
        for update, expected in (("in_backward", [1, 2, 2, 2]), ("after_backward", [])):
            held.clear()
            with unittest.mock.patch.object(_turns.Lending, "lend", lend_and_count):
                engine = self.engine(models.make(Language), config={"schedule": {"update": update}})
                found.append((models.engine_losses(engine, data), engine.state_dict()))
                self.assertEqual(held, expected * len(data))
                self.assertEqual(engine._turns.lending._held, [])
                engine.close()
        (losses, state), (summed_losses, summed) = found
        self.assertEqual(losses, summed_losses)
        for name, value in state.items():
            self.assertTrue(torch.equal(value, summed[name]), name)

    def test_several_gradients_of_a_parameter_are_summed_in_fp32(self):
        """Torch would add them up in the parameter's 16 bits, so these are not lent."""

        class Twice(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = torch.nn.Linear(32, 32)

            def forward(self, x):  # each backward of a checkpoint brings a gradient of its own
                x = torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=True)
                return torch.utils.checkpoint.checkpoint(self.inner, x.tanh(), use_reentrant=True)

        def make(blocks, dtype):
            torch.manual_seed(3)
            return torch.nn.Sequential(*(blocks() for _ in range(3))).to(dtype)

        def lends(blocks, dtype, update):
            lent, lend = [], _turns.Lending.lend
            config = {"schedule": {"update": update}}
            if dtype == torch.bfloat16:
                config["bf16"] = {"enabled": True, "check_grad_overflow": False}
            engine = self.engine(make(blocks, dtype), config=config, optimizer=sluice.AdamW(lr=1e-2))

            def note(lending, core, unit):
                lend(lending, core, unit)
                lent.append(unit.name)

            with unittest.mock.patch.object(_turns.Lending, "lend", note):
                torch.manual_seed(4)
                for _ in range(6):
                    x = torch.randn(8, 32, dtype=dtype, requires_grad=True)
                    engine.backward(engine(x).float().square().mean())
                    engine.step()
            state = engine.state_dict()
            engine.close()
            return bool(lent), state

        once = lambda: torch.nn.Linear(32, 32)  # noqa: E731
        self.assertTrue(lends(once, torch.bfloat16, "in_backward")[0])
        self.assertTrue(lends(Twice, torch.float32, "in_backward")[0])
        lent, state = lends(Twice, torch.bfloat16, "in_backward")
        self.assertFalse(lent)
        _, summed = lends(Twice, torch.bfloat16, "after_backward")
        for name, value in state.items():
            self.assertTrue(torch.equal(value, summed[name]), name)

    def test_checkpoints(self):
        self.check(Language, checkpoints=True)

    def test_accumulation_and_clipping(self):
        self.check(Language, accumulation=2, clip=0.5)

    def test_frozen_parameters(self):
        module = models.make(Language)
        for name, parameter in module.named_parameters():
            parameter.requires_grad = "up" in name or name.startswith("norm")
        data = models.batches(Language)
        expected, _ = models.plain_losses(module, data)
        engine = self.engine(module)
        self.assert_near(models.engine_losses(engine, data), expected)
        engine.close()

    def test_groups_and_schedulers(self):
        schedulers = torch.optim.lr_scheduler
        for make in (
            lambda optimizer: schedulers.StepLR(optimizer, 3, 0.5),
            lambda optimizer: schedulers.OneCycleLR(optimizer, 2e-3, total_steps=12),  # betas, too
        ):
            self.check_scheduler(make)

    def check_scheduler(self, make_scheduler):
        module = models.make(Language, dropout=0.0)
        data = models.batches(Language)
        plain = models.make(Language, dropout=0.0)
        matrices = [p for p in plain.parameters() if p.dim() > 1]
        vectors = [p for p in plain.parameters() if p.dim() <= 1]
        groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=1e-3)
        scheduler = make_scheduler(optimizer)
        expected = []
        for batch in data:
            optimizer.zero_grad()
            loss = plain(batch)
            loss.backward()
            optimizer.step()
            scheduler.step()
            expected.append(loss.item())
        engine = self.engine(
            module, groups=lambda name, p: {"weight_decay": 0.0} if p.dim() <= 1 else {}
        )
        scheduler = make_scheduler(engine.optimizer)
        found = []
        for batch in data:
            loss = engine(batch)
            engine.backward(loss)
            engine.step()
            scheduler.step()
            found.append(loss.item())
        self.assert_near(found, expected)

    def test_several_runs_in_one_process(self):
        """Each has its own losses, also if the steps lie within each other."""
        data = models.batches(Language, 4)
        one, other = self.engine(models.make(Language)), self.engine(models.make(Language), config=PLACEMENTS[3])
        looped = models.make(Language)
        optimizer = sluice.torch.AdamW(looped.parameters(), lr=1e-3, host="32MiB")
        found = [[], [], []]
        for number, batch in enumerate(data):
            losses = []
            for call in (one, other, looped):  # with the same random numbers
                torch.manual_seed(number)
                losses.append(call(batch))
                found[len(losses) - 1].append(losses[-1].item())
            one.backward(losses[0])
            other.backward(losses[1])
            optimizer.zero_grad()
            losses[2].backward()
            other.step()
            optimizer.step()
            one.step()
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[0], found[2])
        one.close()
        self.assertEqual(models.engine_losses(other, data[:1]), models.loop_losses(looped, optimizer, data[:1]))

    def test_evaluation_between_steps(self):
        data = models.batches(Language)
        engine = self.engine(models.make(Language, dropout=0.0))
        plain, _ = models.plain_losses(models.make(Language, dropout=0.0), data[:3])
        found = []
        for batch in data[:3]:
            found += models.engine_losses(engine, [batch], None)
            with torch.no_grad():
                whole = engine(batch).item()
                engine.module.blocks[1](torch.zeros(1, 4, 32))  # a part alone, out of order
                self.assertEqual(engine(batch).item(), whole)
        self.assert_near(found, plain)
        self.assertLess(whole, found[-1])

    @unittest.mock.patch("sluice.torch._init._KEPT_ELEMS", 0)
    def test_init_fills_units_one_by_one(self):
        module = sluice.torch.init(lambda: Language(dropout=0.0), seed=4)
        held = sum(p.untyped_storage().nbytes() for p in module.parameters())
        self.assertLess(held, 1024)
        engine = self.engine(module)
        engine._record((models.batches(Language)[0],), {})
        held = sum(p.untyped_storage().nbytes() for p in module.parameters())
        self.assertLess(held, 1024)
        losses = models.engine_losses(engine, models.batches(Language) * 3)
        engine.close()
        again = sluice.torch.init(lambda: Language(dropout=0.0), seed=4)
        same = models.engine_losses(self.engine(again), models.batches(Language) * 3)
        self.assertEqual(losses, same)
        self.assertLess(sum(losses[-5:]), sum(losses[:5]))


    @unittest.mock.patch("sluice.torch._init._KEPT_ELEMS", 0)
    def test_init_leaves_what_has_no_floats(self):
        module = sluice.torch.init(models.Counting)
        self.assertTrue(torch.equal(module.order, torch.arange(16).flip(0)))
        models.engine_losses(self.engine(module), models.batches(models.Counting, 2))
        values = {name: p.detach() for name, p in models.make(models.Counting).named_parameters()}
        values["order"] = torch.arange(16)
        header, data = {}, b""
        for name, value in values.items():
            stored = bytes(value.untyped_storage())
            header[name] = {"dtype": "I64" if name == "order" else "F32", "shape": list(value.shape),
                            "data_offsets": [len(data), len(data) + len(stored)]}
            data += stored
        text = json.dumps(header).encode()
        with open(os.path.join(self.directory, "model.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + data)
        module = sluice.torch.init(models.Counting, checkpoint=self.directory)
        self.assertTrue(torch.equal(module.order, torch.arange(16)))
        self.assertEqual(module.order.dtype, torch.int64)

    @unittest.mock.patch("sluice.torch._init._KEPT_ELEMS", 64)
    def test_init_keeps_what_building_writes(self):
        class Scaled(Language):
            def __init__(self):
                super().__init__(dropout=0.0)
                self.scale = torch.nn.Parameter(torch.full((32,), 2.0))
                torch.nn.init.constant_(self.norm.weight, 3.0)

        class Written(Scaled):
            def __init__(self):
                super().__init__()
                torch.nn.init.normal_(self.blocks[1].up.weight, std=0.5)

        engine = self.engine(sluice.torch.init(Scaled))
        engine.prepare(models.batches(Language)[0])
        state = engine.state_dict()
        engine.close()
        self.assertTrue(torch.equal(state["scale"], torch.full((32,), 2.0)))
        self.assertTrue(torch.equal(state["norm.weight"], torch.full((32,), 3.0)))
        self.assert_refused('writes values to "blocks.1.up.weight"', sluice.torch.init, Written)

        class Replaced(Written):  # as transformers' GPT-2 does
            def __init__(self):
                super().__init__()
                self.apply(self._init_weights)

            def _init_weights(self, item):
                if isinstance(item, torch.nn.Linear):
                    torch.nn.init.constant_(item.weight, 0.25)

        engine = self.engine(sluice.torch.init(Replaced))
        engine.prepare(models.batches(Language)[0])
        weight = engine.state_dict()["blocks.1.up.weight"]
        self.assertTrue(torch.equal(weight, torch.full_like(weight, 0.25)))
        attention = sluice.torch.init(lambda: torch.nn.MultiheadAttention(32, 2))
        self.assertIn("in_proj_weight", dict(attention.named_parameters()))

    def test_buffers_are_those_of_the_commit(self):
        """A step that is not over has changed them, too."""
        def change(module):  # so that its values tell which file they are of
            for number, buffer in enumerate(module.buffers()):
                buffer.fill_(number)
            return module

        data = models.batches(Images, 6)
        _, trained = models.plain_losses(models.make(Images), data[:4])
        engine = self.engine(models.make(Images), name="buffers", commit_every=2)
        models.engine_losses(engine, data[:4])
        engine(data[4])  # gives up its step
        engine.close()
        engine = self.engine(change(models.make(Images)), name="buffers")
        engine.prepare(data[4])
        self.assertEqual(engine.info().step, 4)
        state, wanted = engine.state_dict(), trained.state_dict()
        for name, _ in trained.named_buffers():
            self.assertTrue(torch.allclose(state[name], wanted[name], 1e-4, 1e-6), name)
        engine.close()
        shutil.rmtree(os.path.join(self.directory, "buffers", "buffers"))
        with self.assertWarnsRegex(UserWarning, "no buffers of step 4"):
            self.engine(models.make(Images), name="buffers").prepare(data[4])

    def test_blocks_that_are_used_again_or_left_out(self):
        """In the run itself: each use has a turn of its own, also one that a step leaves out."""
        self.check(models.Again)
        self.check(models.AgainReentrant)
        for kind in (models.Again, models.Skipping, models.Sometimes):
            for options in ({"accumulation": 2}, {"update": "in_backward"}):
                with self.subTest(kind=kind.__name__, **options):
                    self.check(kind, **options)

    def test_inference_mode(self):
        data = models.batches(Language)
        expected, _ = models.plain_losses(models.make(Language, dropout=0.0), data[:3])
        engine = self.engine(models.make(Language, dropout=0.0))
        found = []
        for batch in data[:3]:
            with torch.no_grad():
                loss = engine(batch).item() if found else None
            with torch.inference_mode():
                self.assertEqual(engine(batch).item() if found else None, loss)
            found += models.engine_losses(engine, [batch], None)
        self.assert_near(found, expected)

    def test_workers_of_a_data_loader(self):
        """They are forked in each epoch, while the run is open."""
        rows = torch.utils.data.TensorDataset(torch.cat(models.batches(Language, 4)))
        loader = torch.utils.data.DataLoader(rows, batch_size=2, num_workers=2)
        data = models.batches(Language, 4) * 2
        expected, _ = models.plain_losses(models.make(Language, dropout=0.0), data)
        engine = self.engine(models.make(Language, dropout=0.0))
        found = []
        for _ in range(2):
            for (batch,) in loader:
                found += models.engine_losses(engine, [batch], None)
        self.assert_near(found, expected)

    def test_a_forked_process_cannot_use_the_engine(self):
        engine = self.engine(models.make(Language, dropout=0.0))
        models.engine_losses(engine, models.batches(Language, 1))
        child = os.fork()
        if child == 0:
            try:
                engine(models.batches(Language)[1])
            except sluice.WrongJob as error:
                os._exit(0 if "forked" in str(error) else 1)
            os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        models.engine_losses(engine, models.batches(Language, 2)[1:])


class Placements(Engines):
    def test_ten_placements_give_equal_bits(self):
        data = models.batches(Language, 6)
        results = []
        for config in PLACEMENTS:
            engine = self.engine(models.make(Language), config={**config, "gradient_clipping": 0.5})
            losses = models.engine_losses(engine, data)
            results.append((losses, engine.state_dict()))
            engine.close()
        for losses, state in results[1:]:
            self.assertEqual(losses, results[0][0])
            for name, value in state.items():
                self.assertTrue(torch.equal(value, results[0][1][name]), name)

    def test_updates_run_within_passes(self):
        data = models.batches(Language, 6)
        everything = {kind: "nvme" for kind in ("params", "grads", "optimizer")}
        config = {"tiers": {"place": everything}, "schedule": {"update": "in_next_forward"}}

        def run(replace_pause):
            engine = self.engine(models.make(Language), config=config, host="448KiB")
            engine.prepare(data[0])
            engine._core.module_pause = replace_pause(engine._core.module_pause)
            losses = models.engine_losses(engine, data)
            engine.close()
            return losses

        found = []

        def wait_for_update(pause):
            def asks():  # until one waits, or for long
                for _ in range(100 if True not in found else 1):
                    found.append(pause())
                    if found[-1]:
                        return
                    time.sleep(1e-4)
            return asks

        expected = run(lambda pause: lambda: False)
        self.assertEqual(run(wait_for_update), expected)
        self.assertIn(True, found)

    def test_plan_and_profile(self):
        engine = self.engine(models.make(Language), device="16MiB")
        engine.prepare(models.batches(Language)[0])
        self.assertLessEqual(engine.info().device_bytes, 16 << 20)
        self.assertLessEqual(engine.info().host_bytes, 32 << 20)
        self.assertEqual(engine.plan().budget_bytes.device, 16 << 20)
        self.assertGreater(engine.plan().step_seconds, 0)
        self.assert_refused("5 steps or more", engine.profile)
        models.engine_losses(engine, models.batches(Language, 6))
        profile = engine.profile()
        self.assertEqual(profile.steps, 4)
        self.assertGreater(profile.measured_seconds, 0)
        self.assertGreater(profile.lanes["compute"].measured_busy_seconds, 0)

    def test_a_skipped_step_changes_nothing(self):
        data = models.batches(Language)
        expected, _ = models.plain_losses(models.make(Language, dropout=0.0), data[:4])
        engine = self.engine(models.make(Language, dropout=0.0))
        found = models.engine_losses(engine, data[:2])
        engine(data[5])
        engine.skip()
        found += models.engine_losses(engine, data[2:4])
        self.assert_near(found, expected)

    def test_an_engine_that_is_dropped_closes_its_run(self):
        for _ in range(2):
            engine = sluice.torch.Engine(
                models.make(Language), device="32MiB", host="32MiB",
                nvme=[os.path.join(self.directory, "drive")],
                run_dir=os.path.join(self.directory, "dropped"),
            )
            models.engine_losses(engine, models.batches(Language, 1))
            del engine
            gc.collect()

    def test_a_backward_after_its_engine_was_dropped(self):
        engine = sluice.torch.Engine(models.make(Language), device="32MiB", host="32MiB",
                                     run_dir=os.path.join(self.directory, "dropped"))
        loss = engine(models.batches(Language)[0])
        del engine
        gc.collect()
        self.assert_refused("was dropped", loss.backward)

    def test_a_second_try_after_a_refusal(self):
        module = models.make(Language, width=128)
        self.assertRaises(sluice.NoFit, self.engine, module, device="1MiB")
        models.engine_losses(self.engine(module), models.batches(Language, 2))

    def test_the_jobs_scheduler_counts(self):
        warmup = {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_max_lr": 1e-3}}
        engine = self.engine(models.make(Language), config={"scheduler": warmup})
        data = models.batches(Language, 3)
        rates = []
        for batch in data:
            engine.backward(engine(batch))
            rates.append(engine.step().learning_rate)
        self.assertLess(rates[0], rates[2])

    def test_after_closing(self):
        module, data = models.make(Language, dropout=0.0), models.batches(Language)
        engine = self.engine(module, name="closed")
        models.engine_losses(engine, data[:2])
        state = engine.state_dict()
        with torch.no_grad():
            expected = engine(data[2]).item()
        engine.close()
        self.assert_refused("has no values", module, data[2])
        self.assert_refused("is closed", engine, data[2])
        module.load_state_dict(state, assign=True)
        self.assertAlmostEqual(module(data[2]).item(), expected, places=5)
        engine = self.engine(models.make(Language, dropout=0.0), name="closed")
        engine.prepare(data[2])  # the run goes on
        self.assertEqual(engine.info().step, 2)
        self.assertEqual(engine(data[2]).item(), expected)

    def test_too_small_is_refused(self):
        """When the engine is made, in as far as no other order of the module's units can help."""
        drive = os.path.join(self.directory, "tiny")
        for text, options in (("smaller units of the module need less", {"device": "1MiB"}),
                              ("of host, has 4096", {"host": 4096}),
                              ("of nvme, has 2097152", {"nvme": [{"path": drive, "budget": "2MiB"}]})):
            with self.assertRaisesRegex(sluice.NoFit, text):
                self.engine(models.make(Language, width=256), **options)
        self.assertEqual(os.listdir(self.directory), [])
        with self.engine(models.make(Language), name="begun") as engine:
            engine.prepare(models.batches(Language)[0])
        engine = self.engine(models.make(Language), name="begun", device="64KiB")  # it has its drives
        self.assertRaises(sluice.NoFit, engine, models.batches(Language)[0])
        with unittest.mock.patch.dict(os.environ, {"WORLD_SIZE": "2"}):  # each rank has a part
            self.engine(models.make(Language), host=4096, config={"train_batch_size": 2})

if __name__ == "__main__":
    unittest.main()
