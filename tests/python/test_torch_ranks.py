"""Two ranks of sluice.torch beside one process: by torchrun, and by Open MPI's mpirun. Each launch
runs the programs of both kinds, since its processes need seconds to import torch."""

import functools
import os
import subprocess
import tempfile
import unittest
import unittest.mock

try:
    import torch
except ImportError:
    raise unittest.SkipTest("this Python has no torch") from None

import launchers
import sluice.torch
import torch_models as models
from test_torch_optimizers import bits, loss_of, make

BEGIN = """
import os, sys
sys.path.insert(0, {tests!r})
import torch, sluice, sluice.torch, test_torch_optimizers as own, torch_models as models
torch.set_num_threads(1)
"""

#: How a module of rank 1 differs: what rank 1 has, and rank 0.
PLAIN = 'the parameter "extra" (float32, [3], learns)'
DIFFERENCES = {
    "dtype": ('the parameter "extra" (bfloat16, [3], learns)', PLAIN),
    "shape": ('the parameter "extra" (float32, [4], learns)', PLAIN),
    "frozen": ('the parameter "extra" (float32, [3], frozen)', PLAIN),
    "name": ('the parameter "other" (float32, [3], learns)', PLAIN),
    "units": ('"root" (14 parameters, group 0) as unit 0', '"root" (4 parameters, group 0) as unit 0'),
    "numbers": ('"blocks.0" (10 parameters, group 0) as unit 3', '"blocks.0" (10 parameters, group 0) as unit 1'),
    "order": ('"blocks.2" (10 parameters, group 0) as unit 3', '"blocks.0" (10 parameters, group 0) as unit 1'),
}

OPTIMIZERS = """
sluice.torch._optimizer_job.UNIT_ELEMS = 600
by_mpirun = {{}}  # torch.distributed knows torchrun's ranks by itself
if "OMPI_COMM_WORLD_RANK" in os.environ:
    by_mpirun = {{"init_method": "file://" + {directory!r} + "/store", "world_size": 2,
                 "rank": int(os.environ["OMPI_COMM_WORLD_RANK"])}}
torch.distributed.init_process_group("gloo", **by_mpirun)
rank = torch.distributed.get_rank()

def slabs(folder):
    return [name for _, _, names in os.walk(folder) for name in names]

torch.manual_seed(rank)
other = torch.nn.Linear(128, 128)  # each rank has a part of its weights
for again in range(2):  # the run has begun with the values of both, and is refused again
    try:
        sluice.torch.AdamW(other.parameters(), host="64MiB", run_dir={directory!r} + "/unequal")
    except sluice.WrongJob as error:
        assert "begin with equal parameters" in str(error), error
        sys.stdout.write(f"refused {{rank}}\\n")
for dtype in (torch.float32, torch.bfloat16, torch.float16):  # equal on both ranks, and refused by none
    holes = torch.tensor([float("nan"), 1.5, -0.0] * 200).to(dtype)
    if dtype == torch.float16:
        holes.view(torch.int16)[0] = 0x7C01  # a NaN that changes its bits on its way through fp32
    parameter = torch.nn.Parameter(holes.clone())
    optimizer = sluice.torch.AdamW([parameter], host="64MiB", weight_decay=0.0)
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(parameter.isnan(), holes.isnan()) and torch.equal(parameter[1::3], holes[1::3])
    optimizer.close()
    sys.stdout.write(f"accepted {{rank}}\\n")
images = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # not contiguous
torch.manual_seed(1)
for parameter in images.parameters():
    torch.nn.init.normal_(parameter)
assert not images.weight.is_contiguous()
sluice.torch.AdamW(images.parameters(), host="64MiB").close()
sys.stdout.write(f"accepted {{rank}}\\n")
drives = {{"driven": {directory!r} + "/drive", "temporary": {directory!r} + f"/host-{{rank}}"}}
for way in ("wrapped", "overlapped", "driven", "temporary"):
    module = own.make()
    called = torch.nn.parallel.DistributedDataParallel(module) if way == "wrapped" else module
    optimizer = sluice.torch.AdamW(
        module.parameters(), lr=1e-3, host="64MiB", overlap=way == "overlapped", nvme=drives.get(way),
        run_dir={directory!r} + "/" + way if way in ("wrapped", "driven") else None)
    if way == "temporary":  # each rank's slab has no name, also where the other rank cannot see it
        assert optimizer._core.info().nvme_bytes > 0 and not slabs(drives[way])
    for step in range(4):
        optimizer.zero_grad()
        own.loss_of(called, 2 * step + rank).backward()
        optimizer.step()
    sys.stdout.write(f"bits {{way}} {{rank}} {{own.bits(module)}}\\n")  # one write
    optimizer.close()
torch.distributed.destroy_process_group()
"""

#: The units that rank 1 names.
NAMED = {"units": ["blocks.0", "blocks.1"], "numbers": ["blocks.2", "blocks.1", "blocks.0"]}
#: The same of optimizers alone.
OPTIMIZER_DIFFERENCES = {
    "kind": ("the optimizer Lion", "the optimizer AdamW"),
    "size": ('the parameter "group0.param0" (float32, [5], learns)',
             'the parameter "group0.param0" (float32, [4], learns)'),
    "more": ('the parameter "group0.param1" (float32, [2], learns)', '"group0.0" (1 parameters, group 0) as unit 0'),
}

DIFFERING = """
own = int(os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK")))
for how, (theirs, first) in {differences!r}.items():
    module = models.make(models.Differing, how=how if own == 1 else None)
    engine = sluice.torch.Engine(module, device="32MiB", host="32MiB", nvme=[{directory!r} + "/differing"],
                                 run_dir={directory!r} + "/differing-run", optimizer=sluice.AdamW(lr=1e-3),
                                 units={named!r}.get(how) if own == 1 else None)
    try:
        engine.prepare(models.batches(models.Language, 1)[0])
    except sluice.WrongJob as error:
        assert f"rank 1 has {{theirs}}, and rank 0 has {{first}}: all ranks must train" in str(error), error
        sys.stdout.write(f"differs {{own}} {{how}}\\n")
    engine.close()
for how, (theirs, first) in {optimizers!r}.items():
    differs = how if own == 1 else None
    parameters = [torch.nn.Parameter(torch.zeros(5 if differs == "size" else 4))]
    parameters += [torch.nn.Parameter(torch.zeros(2))] * (differs == "more")
    try:
        (sluice.torch.Lion if differs == "kind" else sluice.torch.AdamW)(parameters, host="64MiB")
    except sluice.WrongJob as error:
        assert f"rank 1 has {{theirs}}, and rank 0 has {{first}}: all ranks must train" in str(error), error
        sys.stdout.write(f"differs {{own}} {{how}}\\n")
"""

ENGINE = """
module = models.make(models.Skipping)
own = int(os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK")))
module.register_buffer("whose", torch.tensor(own))
os.chdir({directory!r})
if own == 1:  # its host has another run_dir, which nothing is read from
    os.makedirs("other/run", exist_ok=True)
    os.chdir("other")
engine = sluice.torch.Engine(module, device="32MiB", host="32MiB",
                             nvme=[{directory!r} + "/engine"], run_dir="run", optimizer=sluice.AdamW(lr=1e-3),
                             config={{"zero_optimization": {{"stage": 2}}}})
data = models.batches(models.Language, 8)
engine.prepare(data[0])
assert engine.info().world_size == 2
rank = engine.info().rank
assert module.whose == (rank if engine.info().step == 0 else 0)  # rank 0's are saved, and given to all
dies = rank == 1 and os.environ.get("DIES", "never") == os.environ.get("TORCHELASTIC_RESTART_COUNT")
for batch in data[2 * engine.info().step + rank :: 2]:
    loss = engine(batch)
    engine.backward(loss)
    step = engine.step().step
    sys.stdout.write(f"loss {{rank}} {{step}} {{loss.item().hex()}}\\n")  # one write
    if step == 2:
        engine.commit()
        if dies:
            os._exit(3)
engine.close()
"""


def train_averaged(module, optimizer, first, steps):
    """With the gradients that two ranks have together."""
    parameters = list(module.parameters())
    for step in range(first, first + steps):
        one, other = (torch.autograd.grad(loss_of(module, 2 * step + rank), parameters) for rank in (0, 1))
        for parameter, a, b in zip(parameters, one, other):
            parameter.grad = (a + b) / 2
        optimizer.step()


class Ranks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.directory = scratch.name
        cls.launch = staticmethod(functools.lru_cache(None)(cls.launch_once))

    @classmethod
    def launch_once(cls, name):
        """Returns the directory of the launch, and the words of each line that it printed."""
        launcher = launchers.MPIRUN if name == "mpirun" else launchers.TORCHRUN
        directory = os.path.join(cls.directory, name)
        os.makedirs(directory, exist_ok=True)
        program, environment, options = BEGIN + OPTIMIZERS + DIFFERING + ENGINE, {}, []
        if name == "restarted":
            program, environment, options = BEGIN + ENGINE, {"DIES": "0"}, ["--max-restarts=1"]
        path = os.path.join(directory, "ranked.py")
        with open(path, "w") as file:
            file.write(program.format(tests=os.path.dirname(os.path.abspath(__file__)), directory=directory,
                                      differences=DIFFERENCES, named=NAMED,
                                      optimizers=OPTIMIZER_DIFFERENCES))
        made = subprocess.run([*launcher, *options, path], capture_output=True, text=True, timeout=240,
                              env={**launchers.environment(launcher), **environment})
        assert made.returncode == 0, made.stderr
        return directory, [line.split() for line in made.stdout.splitlines() if line.strip()]

    def losses(self, name):
        lines = [line for line in self.launch(name)[1] if line[0] == "loss"]
        return {(rank, step): bits for _, rank, step, bits in lines}

    def test_optimizers_under_torchrun_have_the_bits_of_one_process(self):
        self.check_optimizers("torchrun")

    @unittest.skipUnless(launchers.has_mpirun(), "there is no mpirun")
    def test_optimizers_under_mpirun_have_the_bits_of_one_process(self):
        self.check_optimizers("mpirun")

    @unittest.mock.patch("sluice.torch._optimizer_job.UNIT_ELEMS", 600)  # more than one unit
    def check_optimizers(self, launcher):
        def optimizer(module, **options):
            made = sluice.torch.AdamW(module.parameters(), lr=1e-3, host="64MiB", **options)
            self.addCleanup(made.close)
            return made

        module = make()
        own = optimizer(module)
        train_averaged(module, own, 0, 4)
        expected = bits(module)
        train_averaged(module, own, 4, 2)
        own.close()
        directory, lines = self.launch(launcher)
        words = [line[0] for line in lines]
        self.assertEqual((words.count("refused"), words.count("accepted")), (4, 8))
        found = sorted(line[1:] for line in lines if line[0] == "bits")
        ways = ("driven", "overlapped", "temporary", "wrapped")
        self.assertEqual(found, [[way, rank, expected] for way in ways for rank in "01"])
        for way in ("driven", "wrapped"):  # one process goes on where the ranks ended
            again = make()
            drive = os.path.join(directory, "drive") if way == "driven" else None
            own = optimizer(again, run_dir=os.path.join(directory, way), nvme=drive)
            self.assertEqual(bits(again), expected)
            train_averaged(again, own, 4, 2)
            self.assertEqual(bits(again), bits(module))
            own.close()

    def test_modules_that_differ_are_refused_on_all_ranks(self):
        for launcher in ["torchrun"] + ["mpirun"] * launchers.has_mpirun():
            found = sorted(line[1:] for line in self.launch(launcher)[1] if line[0] == "differs")
            self.assertEqual(found, sorted([rank, how] for rank in "01" for how in [*DIFFERENCES, *OPTIMIZER_DIFFERENCES]))

    def test_an_engine_has_the_losses_of_one_process(self):
        found = self.losses("torchrun")
        model, data = models.make(models.Skipping), models.batches(models.Language, 8)
        order = [(str(rank), str(step + 1)) for step in range(4) for rank in range(2)]
        plain, _ = models.plain_losses(model, data, accumulation=2)
        self.assertEqual(sorted(found), sorted(order))
        for key, expected in zip(order, plain):
            self.assertAlmostEqual(float.fromhex(found[key]), expected, delta=1e-6 * max(1.0, expected))

    def test_an_engine_that_torchrun_starts_again(self):
        """The ranks meet a second time, with the same store."""
        self.assertEqual(self.losses("restarted"), self.losses("torchrun"))

    @unittest.skipUnless(launchers.has_mpirun(), "there is no mpirun")
    def test_an_engine_has_the_losses_of_mpirun(self):
        self.assertEqual(self.losses("mpirun"), self.losses("torchrun"))


if __name__ == "__main__":
    unittest.main()
