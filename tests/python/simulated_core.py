"""A stand-in for the extension's session of a module: the same turns, over plain tensors, with
AdamW written out. It refuses what the real one refuses, and counts how often each is asked."""

import math
import os
import types

import torch

from sluice.torch._core import Core

FORWARD, BACKWARD = 0, 1


def round_up(count, step):
    return -(-count // step) * step


class SimulatedCore:
    def __init__(self, job, first, **options):
        self.job = job
        os.makedirs(os.path.join(job["run"]["dir"], "state"), exist_ok=True)
        module = job["model"]["module"]
        self.units, self.stages = module["units"], module["stages"]
        bf16 = job.get("bf16", {}).get("enabled", False)
        self.dtype = torch.bfloat16 if bf16 else torch.float32
        self.accumulation = job.get("gradient_accumulation_steps", 1)
        self.groups = {}
        self.step = 0
        self.turns = []  # those of the program at hand that have not come yet
        self.use = None
        self.is_training = None
        self.is_closed = False
        self._session = types.SimpleNamespace(close=self.close_session)
        self.has_failed = False
        self.memory = None
        self.at_end = None
        self.before_commit = lambda: None
        self.losses = []
        self.master, self.moments, self.sums = [], [], []
        for number, unit in enumerate(self.units):
            end = 0
            for tensor in unit["tensors"]:
                end = round_up(end, 128) + math.prod(tensor["shape"])
            elems = round_up(end, 4096)
            values = torch.empty(elems)
            first(number, 0, 4096, values.data_ptr())  # in two parts, as tiles are
            if elems > 4096:
                first(number, 4096, elems - 4096, values[4096:].data_ptr())
            self.master.append(values)
            self.moments.append((torch.zeros(elems), torch.zeros(elems)))
            self.sums.append(None)

    # ---- the session's functions ----

    def module_begin(self, is_training):
        assert not self.turns and self.use is None
        self.is_training = is_training
        last = len(self.stages) - 1
        forward = [(s, FORWARD) for s in range(last if is_training else last + 1)]
        backward = [
            (s, BACKWARD) for s in range(last, -1, -1) if self.stages[s]["backward"] is not None
        ]
        for micro_batch in range(self.accumulation if is_training else 1):
            turns = forward + (backward if is_training else [])
            self.turns += [(stage, pass_, micro_batch) for stage, pass_ in turns]
        self.sums = [None] * len(self.units)

    def module_wait(self):
        assert self.use is None and self.turns
        stage, pass_, micro_batch = self.turns.pop(0)
        of = self.stages[stage]
        told = of["backward" if pass_ else "forward"]
        units = of["units"]
        reads = told.get("reads", [True] * len(units))
        learns = [not self.units[u]["frozen"] for u in units]
        adds = told.get("adds", learns) if pass_ else [False] * len(units)
        self.params, fresh = [], []
        for unit, read in zip(units, reads):
            # a fresh address for each turn, with nothing behind it once it is over
            self.params.append(self.master[unit].to(self.dtype).clone() if read else None)
        for unit, add in zip(units, adds):
            fresh.append(bool(add and self.sums[unit] is None))
            if fresh[-1]:
                self.sums[unit] = torch.full((self.master[unit].numel(),), float("nan"))
        self.use = (
            stage, pass_, micro_batch, tuple(units),
            tuple(0 if p is None else p.data_ptr() for p in self.params),
            tuple(self.sums[u].data_ptr() if add else 0 for u, add in zip(units, adds)),
            tuple(fresh), tuple(self.master[u].numel() for u in units), 1.0 / self.accumulation,
        )
        return self.use

    def module_pause(self):
        return False  # updates are made at the end

    def module_done(self, loss):
        assert self.use is not None
        if self.use[0] == len(self.stages) - 1 and self.is_training:
            self.losses.append(loss)
        for values in self.params:
            if values is not None:
                values.fill_(float("nan"))
        self.use = None

    def module_end(self):
        assert self.use is None and not self.turns, "turns are left"
        if not self.is_training:
            return None
        self.step += 1
        norm = math.sqrt(sum(float(s.double().square().sum()) for s in self.sums if s is not None))
        clip = self.job.get("gradient_clipping", 0)
        factor = clip / (norm + 1e-6) if clip and norm > clip else 1.0
        for number, unit in enumerate(self.units):
            if not unit["frozen"]:
                self.update(number, unit["group"], factor)
        return {"step": self.step, "loss": self.losses[-1], "grad_norm": norm}

    def update(self, number, group, factor):
        lr, decay, beta1, beta2, eps = self.groups[group]
        master, (m, v) = self.master[number], self.moments[number]
        grad = self.sums[number] * factor
        master.mul_(1 - lr * decay)
        m.lerp_(grad, 1 - beta1)
        v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        denominator = (v.sqrt() / math.sqrt(1 - beta2**self.step)).add_(eps)
        master.addcdiv_(m, denominator, value=-lr / (1 - beta1**self.step))

    def module_set_group(self, number, lr, weight_decay, beta1, beta2, eps):
        params = self.job["optimizer"]["params"]  # NaN stands for the job's
        own = (params["lr"], params["weight_decay"], *params["betas"], params["eps"])
        given = (lr, weight_decay, beta1, beta2, eps)
        self.groups[number] = [b if math.isnan(a) else a for a, b in zip(given, own)]

    def module_abort(self, text):
        self.use, self.turns = None, []
        return True  # the step may be begun again

    def info(self):
        return types.SimpleNamespace(step=self.step, world_size=1, rank=0, tokens_per_step=self.accumulation)

    def commit(self):
        return self.step

    @property
    def is_open(self):
        return not self.is_closed

    close, from_rank0 = Core.close, Core.from_rank0

    def close_session(self):
        self.is_closed = True

    def set_at_end(self, call):
        self.at_end = call


def open_simulated(job, first, **options):
    return SimulatedCore(job, first, **options)
