"""sluice.torch.AdamW and its kin beside torch's own."""

import copy
import gc
import hashlib
import os
import tempfile
import unittest

try:
    import torch
except ImportError:
    raise unittest.SkipTest("this Python has no torch") from None

import programs
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


#: Without drives of its own it needs no slab; with them the slab is gone with the process.
KILLED = """
import os, sys, tempfile
import sluice.torch, test_torch_optimizers as own
tempfile.tempdir = {scratch!r}
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

    def test_without_run_dir_no_state_stays_after_a_kill(self):
        drive, scratch = os.path.join(self.directory, "drive"), os.path.join(self.directory, "scratch")
        os.mkdir(scratch)
        status, text, errors = programs.run(KILLED.format(drive=drive, scratch=scratch))
        self.assertEqual((status, text), (-9, "stepped\n"), errors)
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
