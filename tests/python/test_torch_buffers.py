"""The buffers of a module that are saved with each commit: in a run, and on their own."""

import errno
import os
import shutil
import stat
import tempfile
import unittest
import unittest.mock
import warnings

try:
    import torch
except ImportError:
    raise unittest.SkipTest("this Python has no torch") from None

import sluice
import torch_models as models
from sluice.torch import _buffers
from sluice.torch._buffers import Buffers
from torch_engines import Engines


class Counting(torch.nn.Module):
    """Counts its forwards; the buffer that never changes is a large one in these tests."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(2)])
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("table", torch.arange(64.0))

    def forward(self, batch):
        if torch.is_grad_enabled():
            self.count += 1
        for block in self.blocks:
            batch = block(batch)
        return batch.square().mean()


class Late(Counting):
    """Makes a buffer in its first forward, and one that a None announces."""

    def __init__(self):
        super().__init__()
        del self.count, self.table
        self.register_buffer("scale", None)

    def forward(self, batch):
        if self.scale is None:
            self.register_buffer("scale", torch.zeros(()))
            self.blocks[0].register_buffer("count", torch.zeros(()))
        if torch.is_grad_enabled():
            self.scale += 2
            self.blocks[0].count += 1
        return torch.nn.Sequential(*self.blocks)(batch).square().mean()


def full():
    return OSError(errno.ENOSPC, "No space left on device")


class Runs(Engines):
    BATCH = torch.ones(2, 8)

    def begun(self, steps, name="run", **options):
        """An engine with `steps` more steps."""
        engine = self.engine(Counting(), name=name, **options)
        engine.prepare(self.BATCH)
        self.train(engine, steps)
        return engine

    def train(self, engine, steps):
        for _ in range(steps):
            engine.backward(engine(self.BATCH))
            engine.step()

    def resumed_count(self, name="run"):
        """Of a run that goes on without a warning."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            engine = self.begun(0, name)
        count = int(engine.module.count)
        self.assertEqual(count, engine.info().step)
        engine.close()
        return count

    def saved(self, step, name="run"):
        path = os.path.join(self.directory, name, "buffers", f"step-{step:09}.pt")
        return int(torch.load(path)["count"])

    def test_buffers_that_a_step_makes(self):
        for until in (2, 4):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                engine = self.engine(Late(), name="late", commit_every=1)
                engine.prepare(self.BATCH)
            self.train(engine, 2)
            self.assertEqual(int(engine.module.scale), 2 * until)
            self.assertEqual(int(engine.module.blocks[0].count), until)
            engine.close()

    def test_commits_between_the_scheduled_ones(self):
        engine = self.begun(1)
        self.assertEqual(engine.commit(), 1)
        self.assertEqual(self.saved(1), 1)
        self.train(engine, 1)
        engine(self.BATCH)  # gives up its step
        engine.close()
        self.assertEqual(self.resumed_count(), 2)

    def test_a_run_that_begins_with_anothers(self):
        self.begun(3).close()
        run, states = os.path.join(self.directory, "run"), []
        for step in (3, 4):  # the second one goes on, and leaves start_from unused
            engine = self.engine(Counting(), name="next", start_from=run)
            engine.prepare(self.BATCH)
            self.assertEqual((engine.info().step, int(engine.module.count)), (step, step))
            self.train(engine, 1)
            states.append(engine.state_dict())
            engine.close()
        engine = self.begun(1)  # it is as it was, and makes the same step
        self.assertEqual(engine.info().step, 4)
        for name, value in engine.state_dict().items():
            self.assertTrue(torch.equal(value, states[0][name]), name)
        engine.close()
        engine = self.begun(1, "faster", start_from=run, optimizer=sluice.AdamW(lr=1e-2))
        self.assertEqual(engine.info().step, 5)
        engine.close()
        # a run that has begun does not take those of the other, which has some of its step, 5
        for lost, name, other in (("run", "third", "run"), ("next", "next", "faster")):
            folder = os.path.join(self.directory, lost, "buffers")
            for file in os.listdir(folder):
                os.unlink(os.path.join(folder, file))
            engine = self.engine(Counting(), name=name, start_from=os.path.join(self.directory, other))
            self.assertRaisesRegex(sluice.WrongJob, f"{lost}/buffers has no buffers", engine.prepare, self.BATCH)
            engine.close()

    def test_a_run_that_begins_with_step_0_of_another(self):
        engine = self.engine(Counting(), name="run")
        engine.module.count.fill_(7)
        engine.prepare(self.BATCH)
        self.assertEqual(engine.commit(), 0)
        engine.close()
        engine = self.begun(0, "next", start_from=os.path.join(self.directory, "run"))
        self.assertEqual(int(engine.module.count), 7)
        engine.close()

    def test_a_module_that_is_compiled_later(self):
        """Or no more. Its names are those that it has without."""
        import torch._dynamo

        def compiled(ways):
            module = models.make(models.Images)
            if "blocks" in ways:
                for number, block in enumerate(module.blocks):
                    module.blocks[number] = torch.compile(block, backend="eager")
                module.stem = torch.compile(module.stem, backend="eager")
            return torch.compile(module, backend="eager") if "whole" in ways else module

        data, losses = models.batches(models.Images, 5), []
        expected = models.engine_losses(self.engine(compiled("")), data)
        for batch, ways in zip(data, ("", "blocks", "whole blocks", "whole", "")):
            engine = self.engine(compiled(ways), name="run")
            losses += models.engine_losses(engine, [batch])
            state = engine.state_dict()
            engine.close()
        self.assertEqual(losses, expected)
        self.assertEqual(int(state["stem.1.num_batches_tracked"]), 5)
        torch._dynamo.reset()

    def test_ctrl_c_while_they_are_written(self):
        """Neither call commits the step, and both can be made again."""
        engine = self.begun(1)
        for call in (engine.commit, engine.close):
            with unittest.mock.patch("torch.save", side_effect=KeyboardInterrupt):
                self.assertRaises(KeyboardInterrupt, call)
            self.assertEqual(engine.info().step, 1)
        engine.close()
        self.assertEqual(self.resumed_count(), 1)

    def test_a_full_disk(self):
        engine = self.begun(2, commit_every=2)
        self.train(engine, 1)
        with unittest.mock.patch("torch.save", side_effect=full()):
            self.assertRaisesRegex(sluice.Failed, "buffers cannot be written", engine.commit)
            self.assertRaisesRegex(sluice.Failed, "buffers cannot be written", engine.close)
        self.assertRaisesRegex(sluice.Error, "is closed", engine, self.BATCH)
        folder = os.path.join(self.directory, "run", "buffers")
        for call in ("prepare", "__call__"):
            engine = self.engine(Counting(), name="run")
            with self.assertRaisesRegex(sluice.WrongJob, "no buffers of step 3.*copy step-000000002.pt"):
                getattr(engine, call)(self.BATCH)
            engine.close()
        shutil.rmtree(folder)
        with self.assertWarnsRegex(UserWarning, "as the program has made them") as caught:
            engine = self.engine(Counting(), name="run")
            engine.prepare(self.BATCH)
        self.assertEqual(caught.filename, __file__)
        engine.close()
        self.assertEqual(self.saved(3), 0)  # from now on they are the run's

    def test_a_full_disk_within_a_step(self):
        """The step is given up all the same, or other ranks would wait."""
        engine = self.begun(1, commit_every=2)
        abort = engine._core.module_abort = unittest.mock.Mock(wraps=engine._core.module_abort)
        with unittest.mock.patch("torch.save", side_effect=full()):
            self.assertRaises(sluice.Failed, self.train, engine, 1)
        abort.assert_called_once()
        engine.close()
        self.assertEqual(self.resumed_count(), 2)  # all of its work was done, so that it counts

    def test_an_end_that_fails(self):
        """Each file has the buffers of its own step, and is there whether or not that step counts."""
        engine = self.begun(1)
        engine._core.module_end = unittest.mock.Mock(side_effect=sluice.Failed("on purpose"))
        self.assertRaisesRegex(sluice.Failed, "on purpose", self.train, engine, 1)
        self.assertEqual((self.saved(1), self.saved(2)), (1, 2))
        engine.close()
        self.assertEqual(self.resumed_count(), 2)

    @unittest.mock.patch.object(_buffers, "_KEPT_FILES", 3)
    def test_a_kept_commit(self):
        """It has its own, so that it may be copied elsewhere."""
        self.begun(6, commit_every=1, config={"run": {"keep": 2}}).close()
        folder = os.path.join(self.directory, "run")
        self.assertEqual(
            sorted(os.listdir(os.path.join(folder, "buffers"))),
            [f"step-{step:09}.pt" for step in (4, 5, 6)],
        )
        kept = os.path.join(folder, "keep", "step-000000002")
        shutil.copytree(kept, os.path.join(self.directory, "elsewhere"))
        for name in ("elsewhere", "run/keep/step-000000004"):
            self.assertEqual(self.resumed_count(name), 2 if name == "elsewhere" else 4)


@unittest.mock.patch.object(_buffers, "_SMALL_BYTES", 64)  # `table` has 256
class Files(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.run_dir = scratch.name
        self.folder = os.path.join(self.run_dir, "buffers")
        os.mkdir(os.path.join(self.run_dir, "state"))

    def buffers(self, step=0, rank=0, module=None, every=1, from_rank0=None, start_from=None):
        self.module = module or Counting()
        run = {"dir": self.run_dir, "commit_every": every}
        buffers = Buffers(self.module, run, rank, start_from)
        buffers.begin(step, from_rank0 or (lambda make: make()))
        return buffers

    def names(self):
        return sorted(os.listdir(self.folder)) if os.path.exists(self.folder) else []

    def step(self, buffers, step):
        self.module.count.fill_(step)
        buffers.end_step()
        buffers.step_counts()

    def test_the_step_that_was_committed_chooses(self):
        buffers = self.buffers(every=0)
        self.step(buffers, 1)
        self.module.count.fill_(2)
        buffers.end_step()  # which then fails, and may count or not
        buffers.write()
        for step in (2, 1):  # in this order, as beginning with 1 removes the file of 2
            self.buffers(step)
            self.assertEqual(int(self.module.count), step)

    def test_large_ones(self):
        def written(step, every, how):
            buffers = self.buffers(every=every)
            for number in range(1, step + 1):
                if number == step:
                    how(self.module.table)
                self.step(buffers, number)
            buffers.write()
            return "table" in torch.load(os.path.join(self.folder, f"step-{step:09}.pt"))

        self.assertFalse(written(2, 1, lambda table: None))
        self.assertTrue(written(2, 0, lambda table: table.neg_()))
        self.assertTrue(written(1, 0, lambda table: table.data.neg_()))  # in the first step
        self.assertTrue(written(4, 2, lambda table: table.data.neg_()))  # in one that is committed
        # a module that has no others gets it back, and it is saved again
        module = Counting()
        del module.count
        buffers = self.buffers(4, module=module)
        self.assertTrue(torch.equal(self.module.table, -torch.arange(64.0)))
        buffers.end_step()
        self.assertIn("table", torch.load(os.path.join(self.folder, "step-000000005.pt")))

    def test_a_module_that_has_none(self):
        buffers = self.buffers(module=torch.nn.Linear(2, 2))
        buffers.end_step()
        buffers.step_counts()
        buffers.write()
        self.assertEqual(os.listdir(self.run_dir), ["state"])

    def test_one_that_never_changes_is_no_reason_to_warn(self):
        module = Counting()
        del module.count
        self.buffers(module=module).end_step()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.buffers(1, module=module)

    def test_ranks(self):
        self.step(self.buffers(rank=1), 1)
        self.assertEqual(self.names(), [])  # it needs no access
        self.buffers(1, rank=1, from_rank0=lambda make: {"count": torch.tensor(7.0)})
        self.assertEqual(int(self.module.count), 7)
        self.assertEqual(self.names(), [])

    def test_files_of_no_use(self):
        buffers = self.buffers()
        for step in range(1, 7):
            self.step(buffers, step)
        self.assertEqual(self.names(), [f"step-{step:09}.pt" for step in (3, 4, 5, 6)])
        self.buffers(5)  # step 6 was not committed
        self.assertEqual(self.names(), [f"step-{step:09}.pt" for step in (3, 4, 5)])
        self.buffers(0)
        self.assertEqual(self.names(), [])

    def test_permissions(self):
        os.chmod(os.path.join(self.run_dir, "state"), 0o750)
        before = os.umask(0o077)
        try:
            self.step(self.buffers(), 1)
        finally:
            os.umask(before)
        file = os.path.join(self.folder, "step-000000001.pt")
        self.assertEqual(stat.S_IMODE(os.stat(self.folder).st_mode), 0o750)
        self.assertEqual(stat.S_IMODE(os.stat(file).st_mode), 0o640)

    def test_damage(self):
        os.mkdir(self.folder)
        path = os.path.join(self.folder, "step-000000001.pt")
        with open(path, "wb") as file:
            file.write(b"no tensors")
        with self.assertRaisesRegex(sluice.WrongJob, "cannot be read .*: remove the file"):
            self.buffers(1)
        os.unlink(path)
        with self.assertRaisesRegex(sluice.WrongJob, "goes on: remove that folder"):
            self.buffers(1)


if __name__ == "__main__":
    unittest.main()
