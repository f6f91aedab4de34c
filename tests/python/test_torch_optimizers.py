"""sluice.torch.AdamW and its kin beside torch's own."""

import copy
import gc
import hashlib
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

try:
    import torch
except ImportError:
    raise unittest.SkipTest("this Python has no torch") from None

import launchers
import sluice
import sluice.torch


def make():
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 48), torch.nn.GELU(), torch.nn.Linear(48, 16), torch.nn.LayerNorm(16),
        torch.nn.Linear(16, 4),
    )


def groups(module):
    return [
        {"params": [p for p in module.parameters() if p.dim() > 1]},
        {"params": [p for p in module.parameters() if p.dim() <= 1], "weight_decay": 0.0, "lr": 3e-3},
    ]


def loss_of(module, seed):
    inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.cross_entropy(module(inputs), torch.arange(8) % 4)


def train(module, optimizer, scheduler=None, clip=None, steps=10, first=0):
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = loss_of(module, step)
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        if scheduler:
            scheduler.step()
        losses.append(loss.item())
    return losses


RANKED = """
import os, sys
sys.path.insert(0, {tests!r})
import torch, sluice.torch, test_torch_optimizers as own

sluice.torch._optimizers._UNIT_ELEMS = 600
torch.set_num_threads(1)
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


#: Without drives of its own it needs no slab; with them the slab is gone with the process.
KILLED = """
import os, sys
sys.path.insert(0, {tests!r})
import sluice.torch, test_torch_optimizers as own
for nvme in (None, {drive!r}):
    module = own.make()
    optimizer = sluice.torch.AdamW(module.parameters(), host="64MiB", nvme=nvme)
    own.train(module, optimizer, steps=1)
    if nvme is None:
        assert optimizer._core.info().nvme_bytes == 0
        optimizer.close()
sys.stdout.write("stepped\\n")
sys.stdout.flush()
os.kill(os.getpid(), 9)
"""


def bits(module):
    flat = torch.cat([p.detach().flatten() for p in module.parameters()])
    return hashlib.sha256(bytes(flat.view(torch.uint8).tolist())).hexdigest()


def train_averaged(module, optimizer, first, steps):
    """With the gradients that two ranks have together."""
    parameters = list(module.parameters())
    for step in range(first, first + steps):
        one, other = (torch.autograd.grad(loss_of(module, 2 * step + rank), parameters) for rank in (0, 1))
        for parameter, a, b in zip(parameters, one, other):
            parameter.grad = (a + b) / 2
        optimizer.step()


class Optimizers(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = scratch.name

    def optimizer(self, params, kind="AdamW", **options):
        made = getattr(sluice.torch, kind)(params, host="64MiB", **options)
        self.addCleanup(made.close)
        return made

    def assert_near(self, found, expected):
        for one, other in zip(found, expected):
            self.assertLessEqual(abs(one - other), 1e-6 * max(1.0, abs(other)))

    def test_a_forked_process_leaves_the_optimizer_alone(self):
        module = make()
        own = self.optimizer(module.parameters(), nvme=os.path.join(self.directory, "drive"))
        train(module, own, steps=2)
        child = os.fork()
        if child == 0:  # the parameters are not there, and their values show it
            is_nan = all(bool(p.isnan().all()) for p in module.parameters())
            own.close()
            try:
                own.step()
            except sluice.WrongJob as error:
                os._exit(0 if is_nan and "forked" in str(error) else 1)
            os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        plain = make()
        expected = train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-3), steps=4)
        self.assert_near(train(module, own, steps=2, first=2), expected[2:])

    def test_groups_schedulers_and_clipping(self):
        plain = make()
        adam = torch.optim.AdamW(groups(plain), lr=1e-3)
        expected = train(plain, adam, torch.optim.lr_scheduler.StepLR(adam, 3, 0.5), 0.7)
        results = []
        for nvme in (None, os.path.join(self.directory, "drive")):
            module = make()
            own = self.optimizer(groups(module), lr=1e-3, nvme=nvme)
            losses = train(module, own, torch.optim.lr_scheduler.StepLR(own, 3, 0.5), 0.7)
            self.assert_near(losses, expected)
            results.append(losses)
            own.close()
            train(module, torch.optim.SGD(module.parameters(), 0.1), steps=1)  # its own memory
        self.assertEqual(results[0], results[1])

    def test_overlap_gives_the_same_bits(self):
        results = []
        for overlap in (False, True):
            module = make()
            own = self.optimizer(module.parameters(), lr=1e-3, overlap=overlap)
            results.append(train(module, own))
            own.close()
        self.assertEqual(results[0], results[1])

    def test_a_closure_computes_loss_and_gradients(self):
        module = make()
        own = self.optimizer(module.parameters())
        expected = train(module, own, steps=3)
        own.close()
        for overlap in (False, True):
            module, found = make(), []
            own = self.optimizer(module.parameters(), overlap=overlap)

            def closure():
                own.zero_grad()
                loss = loss_of(module, len(found))
                loss.backward()
                return loss

            for _ in range(3):
                with torch.no_grad():
                    found.append(own.step(closure).item())
            self.assertEqual(found, expected)
            own.close()

    def test_others_learn(self):
        for kind in ("Lion", "Adagrad", "Muon"):
            module = make()
            own = self.optimizer(module.parameters(), kind)
            losses = [train(module, own, steps=1)[0] for _ in range(30)]  # one batch
            self.assertLess(losses[-1], losses[0] - 0.1, kind)
            own.close()

    def test_small_state(self):
        module = make().bfloat16()
        own = self.optimizer(module.parameters(), lr=3e-3, state="split+8bit")
        before = [p.detach().clone() for p in module.parameters()]
        for _ in range(3):
            loss = module(torch.ones(2, 16, dtype=torch.bfloat16)).float().square().mean()
            own.zero_grad()
            loss.backward()
            own.step()
        self.assertTrue(all((p != b).any() for p, b in zip(module.parameters(), before)))

    def test_fp16_with_an_overflow(self):
        values = torch.linspace(-2, 2, 600).half()
        plain, parameter = torch.nn.Parameter(values.float()), torch.nn.Parameter(values.clone())
        adam, own = torch.optim.AdamW([plain], lr=1e-2), self.optimizer([parameter], lr=1e-2)
        for step in range(6):
            parameter.grad = values * (step + 1)
            if step == 3:  # the step is left out, also from the master weights
                parameter.grad[5] = float("inf")
                before = parameter.detach().clone()
                own.step()
                self.assertTrue(torch.equal(parameter, before))
                continue
            plain.grad = parameter.grad.float()
            adam.step()
            own.step()
        self.assertLessEqual(float((parameter.float() - plain).abs().max()), 1e-3)

    def test_grad_scaler(self):
        module, plain = make(), make()
        adam = torch.optim.AdamW(plain.parameters(), lr=1e-3)
        own = self.optimizer(module.parameters(), lr=1e-3)
        found = []
        for one, optimizer in ((plain, adam), (module, own)):
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
            loss = one(torch.ones(2, 16)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            found.append([p.detach().clone() for p in one.parameters()])
        for a, b in zip(*found):
            self.assertLessEqual(float((a - b).abs().max()), 1e-6)

    def test_resumes(self):
        run = os.path.join(self.directory, "run")
        module = make()
        own = self.optimizer(module.parameters(), lr=1e-3)
        expected = train(module, own, steps=8)
        own.close()
        module = make()
        own = self.optimizer(module.parameters(), lr=1e-3, run_dir=run)
        first = train(module, own, steps=5)
        state = own.state_dict()
        self.assertEqual(state["sluice"], {"run_dir": run, "step": 5})
        own.close()
        module = copy.deepcopy(make())
        own = self.optimizer(module.parameters(), lr=1e-3, run_dir=run)
        own.load_state_dict(state)
        self.assertEqual(first + train(module, own, steps=3, first=5), expected)
        own.close()

    def test_two_ranks_of_torchrun_have_the_bits_of_one(self):
        self.check_two_ranks(launchers.TORCHRUN)

    @unittest.skipUnless(launchers.has_mpirun(), "there is no mpirun")
    def test_two_ranks_of_mpirun_have_the_bits_of_one(self):
        self.check_two_ranks(launchers.MPIRUN)

    @unittest.mock.patch("sluice.torch._optimizers._UNIT_ELEMS", 600)  # more than one unit
    def check_two_ranks(self, launcher):
        torch.set_num_threads(1)
        module = make()
        own = self.optimizer(module.parameters(), lr=1e-3)
        train_averaged(module, own, 0, 4)
        expected = bits(module)
        train_averaged(module, own, 4, 2)
        path = os.path.join(self.directory, "ranked.py")
        with open(path, "w") as file:
            file.write(RANKED.format(
                tests=os.path.dirname(os.path.abspath(__file__)), directory=self.directory))
        made = subprocess.run([*launcher, path], capture_output=True, text=True, timeout=240,
                              env=launchers.environment(launcher))
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertEqual(made.stdout.count("refused"), 4)
        self.assertEqual(made.stdout.count("accepted"), 8)
        found = sorted(line.split()[1:] for line in made.stdout.splitlines() if line.startswith("bits"))
        self.assertEqual(found, [[way, rank, expected] for way in ("driven", "overlapped", "temporary", "wrapped")
                                 for rank in ("0", "1")])
        own.close()
        for way in ("driven", "wrapped"):  # one process goes on where the ranks ended
            again = make()
            own = self.optimizer(
                again.parameters(), lr=1e-3, run_dir=os.path.join(self.directory, way),
                nvme=os.path.join(self.directory, "drive") if way == "driven" else None)
            self.assertEqual(bits(again), expected)
            train_averaged(again, own, 4, 2)
            self.assertEqual(bits(again), bits(module))
            own.close()

    def test_without_run_dir_no_state_stays_after_a_kill(self):
        drive, scratch = os.path.join(self.directory, "drive"), os.path.join(self.directory, "scratch")
        os.mkdir(scratch)
        program = KILLED.format(tests=os.path.dirname(os.path.abspath(__file__)), drive=drive)
        made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                              timeout=120, env={**os.environ, "TMPDIR": scratch})
        self.assertEqual((made.returncode, made.stdout), (-9, "stepped\n"), made.stderr)
        self.assertEqual(os.listdir(drive), [])
        left = [name for _, _, names in os.walk(scratch) for name in names]
        small = ["job.json", "lock", "manifest-1", "metrics.jsonl", "plan.json"]
        self.assertEqual(sorted(left), small)

    def test_averages_are_rounded_once(self):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            parameter = torch.nn.Parameter(torch.zeros(3, dtype=dtype))
            slot = sluice.torch._units.Slot("p", parameter, parameter.shape)
            unit = sluice.torch._units.Unit(0, "u", [slot], False, elems=3)
            sums = torch.empty(3)
            given = torch.tensor([1.0, 6e-8, 3.0]).to(dtype)
            for is_fresh in (True, False):
                parameter.grad = given.clone()
                own = sluice.torch._turns.Gradients(unit, sums, is_fresh, 1 / 3)
                own.add(slot)
                own.close()
            expected = given.float() * (1 / 3)
            self.assertTrue(torch.equal(sums, expected + given.float() * (1 / 3)), (dtype, sums))

    def test_an_optimizer_that_is_dropped_leaves_the_parameters(self):
        def fit(module):
            train(module, sluice.torch.AdamW(module.parameters(), host="64MiB"), steps=2)

        module = make()
        fit(module)
        gc.collect()
        self.assertTrue(torch.isfinite(module(torch.ones(1, 16))).all())

    def test_refusals(self):
        def refused(text, function, *arguments, **options):
            with self.assertRaises(sluice.WrongJob) as caught:
                function(*arguments, **options)
            self.assertIn(text, str(caught.exception))

        module = make()
        refused("state is", self.optimizer, module.parameters(), state="4bit")
        mixed = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2).bfloat16())]
        refused("must be of one type", self.optimizer, mixed)
        frozen = [torch.nn.Parameter(torch.zeros(2), False)]
        refused("no parameter learns", self.optimizer, frozen)
        own = self.optimizer(module.parameters())
        refused("has no gradient", own.step)
        refused("closure is int", own.step, 1)
        refused("give all groups", own.add_param_group, {"params": mixed[:1]})
        refused("of another optimizer", own.load_state_dict, {"state": {}, "param_groups": []})
        refused("is of step 9", own.load_state_dict,
                {"param_groups": [{}], "sluice": {"run_dir": "x", "step": 9}})
        own.close()
        refused("is closed", own.step)
        over = self.optimizer(make().parameters(), overlap=True)
        refused("there is no gradient", over.step)
        with self.assertRaises(sluice.NoFit):
            big = [torch.nn.Parameter(torch.zeros(64 << 20))]
            over.close()
            self.optimizer(big)


if __name__ == "__main__":
    unittest.main()
