"""The memory of parameters after their run is closed: whoever still has a tensor over it may read it,
compute with it, and be forked; all that no tensor needs is given back."""

import gc
import itertools
import os
import tempfile
import threading
import unittest
import weakref

try:
    import torch
except ImportError:
    raise unittest.SkipTest("this Python has no torch") from None

import programs
import sluice.torch
import torch_models as models
from test_torch_optimizers import loss_of, make, train


def resident_bytes_at(address):
    """Of the mapping at the address; None: there is none."""
    found = None
    with open("/proc/self/smaps") as file:
        for line in file:
            first = line.split()[0]
            if not first.endswith(":"):
                begin, end = (int(number, 16) for number in first.split("-"))
                found = 0 if begin <= address < end else None
            elif found is not None and first == "Rss:":
                return int(line.split()[1]) << 10
    return None


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_child(function):
    """The function's value in a forked process: 0 to 255; negative: the signal that ended it."""
    child = os.fork()
    if child == 0:
        status = 254
        try:
            status = int(function())
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def close_if_there(reference):
    if reference() is not None:
        reference().close()


def gradients_of(loss, module):
    loss.backward()
    return [p.grad for p in module.parameters()]


#: It ends while a thread trains.
ENDS = """
import threading, torch, sluice.torch, test_torch_optimizers as own
torch.set_num_threads(1)
module, begun = own.make(), threading.Event()

def train():
    try:
        optimizer = sluice.torch.AdamW(module.parameters(), host="64MiB", run_dir={run!r}, overlap={overlap},
                                       commit_every=1)
        for step in range(10**9):
            own.train(module, optimizer, steps=1)
            if step == 2:  # the commit of the first step has ended
                begun.set()
    finally:
        begun.set()

threading.Thread(target=train, daemon=True).start()
begun.wait()
"""


class Memory(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(2)
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = scratch.name

    def begun(self, module=None, **options):
        """A module, and its optimizer after two steps."""
        module = make() if module is None else module
        own = sluice.torch.AdamW(module.parameters(), host="256MiB", **options)
        self.addCleanup(close_if_there, weakref.ref(own))
        train(module, own, steps=2)
        own.zero_grad()
        return module, own

    def assert_equal(self, found, expected):
        for name, value in expected.items():
            self.assertTrue(torch.equal(found[name], value), name)

    # ---- of optimizers alone ----

    def test_a_kept_state_dict_goes_on_with_the_parameters(self):
        for nvme in (None, os.path.join(self.directory, "drive")):
            module, own = self.begun(nvme=nvme)
            kept = module.state_dict()
            before = {name: value.clone() for name, value in kept.items()}
            own.close()
            self.assert_equal(kept, before)
            train(module, torch.optim.SGD(module.parameters(), 0.1), steps=1)
            self.assertFalse(torch.equal(kept["0.weight"], before["0.weight"]))
            self.assert_equal(kept, module.state_dict())
            again = self.begun(module)[1]  # a second one takes the parameters over
            again.close()
            self.assertFalse(torch.equal(kept["0.weight"], module[0].weight))
            self.assertTrue(torch.isfinite(kept["0.weight"]).all())

    def test_a_backward_after_the_end(self):
        for closes, overlap in itertools.product((False, True), repeat=2):  # else it is dropped
            module, own = self.begun(overlap=overlap)
            plain = make()
            plain.load_state_dict(module.state_dict())
            loss = loss_of(module, 7)
            if closes:
                own.close()
            reference = weakref.ref(own)
            del own
            gc.collect()
            self.assertIsNone(reference())
            sluice.torch.AdamW(make().parameters(), host="64MiB").close()  # one run at a time
            for one, other in zip(gradients_of(loss, module), gradients_of(loss_of(plain, 7), plain)):
                self.assertTrue(torch.equal(one, other))

    def test_a_backward_in_another_thread(self):
        """The run is closed in the middle of its forward."""
        module, own = self.begun()
        plain = make()
        plain.load_state_dict(module.state_dict())
        inside, closed, found = threading.Event(), threading.Event(), []

        def waits(*arguments):
            inside.set()
            closed.wait()

        module[3].register_forward_hook(waits)  # the layer before it has saved its weight
        thread = threading.Thread(target=lambda: found.extend(gradients_of(loss_of(module, 7), module)))
        thread.start()
        try:
            self.assertTrue(inside.wait(60))
            own.close()
            sluice.torch.AdamW(make().parameters(), host="64MiB").close()
        finally:
            closed.set()
            thread.join()
        self.assertEqual(len(found), len(list(module.parameters())))
        for one, other in zip(found, gradients_of(loss_of(plain, 7), plain)):
            self.assertTrue(torch.equal(one, other))

    def test_another_thread_drops_it_and_opens_the_next(self):
        module, own = self.begun()
        kept, parts = [own], module.state_dict()
        before = {name: value.clone() for name, value in parts.items()}
        del own
        errors = []

        def drop():
            kept.clear()
            gc.collect()
            try:
                sluice.torch.AdamW(make().parameters(), host="64MiB").close()
            except sluice.Error as error:  # this thread, which made steps, is alive
                errors.append(error)

        in_thread(drop)
        self.assertEqual(errors, [])
        self.assert_equal(parts, before)
        child = in_child(lambda: all(torch.equal(parts[name], before[name]) for name in parts))
        self.assertEqual(child, 1)

    def test_forked_processes(self):
        module, own = self.begun()
        kept = module.state_dict()
        before = {name: value.clone() for name, value in kept.items()}

        def is_elsewhere():
            zero = not any(bool(value.any()) for value in kept.values())
            return zero and all(bool(p.isnan().all()) for p in module.parameters())

        def is_there():
            same = all(torch.equal(kept[name], before[name]) for name in kept)
            return same and torch.equal(module[0].weight, before["0.weight"])

        self.assertEqual(in_child(is_elsewhere), 1)
        own.close()
        self.assertEqual(in_child(is_there), 1)

        def is_given_back():
            address = kept["0.weight"].data_ptr()
            module.double()  # in other memory
            kept.clear()
            return resident_bytes_at(address) is None

        self.assertEqual(in_child(is_given_back), 1)
        self.assertTrue(is_there())

    def test_only_the_parameters_stay(self):
        layers = [torch.nn.Linear(1024, 1024) for _ in range(4)]
        module = torch.nn.Sequential(torch.nn.Linear(16, 1024), *layers, torch.nn.Linear(1024, 4))
        module, own = self.begun(module)
        kept = module.state_dict()
        weight = kept["1.weight"]
        address = weight.data_ptr()
        params_bytes = sum(value.nbytes for value in kept.values())
        self.assertGreater(resident_bytes_at(address), 3 * params_bytes)
        own.close()
        self.assertLess(resident_bytes_at(address), 1.2 * params_bytes)
        self.assertEqual(weight.untyped_storage().nbytes(), weight.nbytes)  # torch saves all of it
        kept.clear()
        module.double()  # in other memory
        self.assertTrue(torch.equal(module[1].weight.float(), weight))
        del weight
        self.assertIsNone(resident_bytes_at(address))

    def test_many_runs_take_the_memory_of_one(self):
        rounds, first, size = 20, 9, 2048 * 2048 * 4
        for number in range(rounds):
            module = torch.nn.Linear(2048, 2048)
            own = sluice.torch.AdamW(module.parameters(), host="256MiB")
            kept = module.state_dict()
            own.close()
            self.assertTrue(torch.equal(kept["weight"], module.weight))
            del module, own, kept
            if number == first:  # the C library keeps some blocks of the first rounds
                before = resident_bytes()
        self.assertLess(resident_bytes() - before, (rounds - first) * size // 2)

    def test_programs_that_end_while_a_thread_trains(self):
        for overlap in (False, True):
            run = os.path.join(self.directory, f"run{overlap}")
            status, _, errors = programs.run(ENDS.format(run=run, overlap=overlap))
            self.assertEqual(status, 0, errors)
            again = self.begun(run_dir=run)[1]
            self.assertGreater(again.state_dict()["sluice"]["step"], 2)
            again.close()

    # ---- of engines ----

    def test_a_view_that_a_program_keeps_of_an_engines_parameter(self):
        def engine(module, run):
            run_dir = os.path.join(self.directory, run)
            made = sluice.torch.Engine(module, device="64MiB", host="64MiB", run_dir=run_dir)
            self.addCleanup(made.close)
            return made

        kept, data = [], models.batches(models.Language)
        module = models.make(models.Language, width=256, dropout=0.0)
        module.blocks[0].register_forward_hook(lambda block, *_: kept.append(block.up.weight.detach()))
        first = engine(module, "first")
        models.engine_losses(first, data[:2])
        loss, view = first(data[2]), kept[-1]
        address = view.data_ptr()
        self.assertGreater(resident_bytes_at(address), 4 << 20)
        first.close()
        self.assertLess(resident_bytes_at(address), 1 << 20)
        self.assertFalse(bool(view.any()))
        self.assertRaises(sluice.WrongJob, loss.backward)
        second = engine(models.make(models.Language, width=256, dropout=0.0), "second")
        models.engine_losses(second, data[:1])
        kept.clear()
        self.assertFalse(bool(view.any()))
        del view
        self.assertIsNone(resident_bytes_at(address))


if __name__ == "__main__":
    unittest.main()
