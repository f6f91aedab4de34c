"""A plain loop: data, a schedule, evaluation, and a run that goes on where it was stopped.

    pip install torch
    python loop.py            # stop it with Ctrl-C, or kill it, and call it again

Any module and any DataLoader take the place of these. The engine commits every 20 steps and at the end, and
the loop begins with the batch that follows the last commit.
"""

import torch
from torch import nn

import sluice
import sluice.torch

STEPS, BATCH, ACCUMULATION = 100, 16, 2


class Mixer(nn.Module):
    """Classifies sequences of 32 vectors."""

    def __init__(self, layers=4, width=128, classes=10):
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, inputs, labels):
        x = self.embed(inputs)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x.mean(1)), labels)


class Rows(torch.utils.data.Dataset):
    """Made-up data: each class is a direction, hidden in noise."""

    def __init__(self, count, seed):
        self.count, self.seed = count, seed
        self.directions = torch.randn(10, 64, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed * 1_000_000 + index)
        label = index % 10
        return torch.randn(32, 64, generator=generator) + 0.08 * self.directions[label], label


def batches(rows, first):
    """All batches from number `first` on, in an order that depends on the epoch alone."""
    each = len(rows) // BATCH
    epoch, skipped = divmod(first, each)
    while True:
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(epoch))
        yield from torch.utils.data.DataLoader(
            rows, BATCH, sampler=order[skipped * BATCH:].tolist(), num_workers=2, drop_last=True,
            generator=torch.Generator())  # so that it draws none of the dropout's random numbers
        epoch, skipped = epoch + 1, 0


def evaluate(engine, rows):
    engine.module.eval()
    with torch.no_grad():
        losses = [engine(*batch).item() for batch in torch.utils.data.DataLoader(rows, BATCH)]
    engine.module.train()
    return sum(losses) / len(losses)


torch.manual_seed(0)
training, held_out = Rows(2000, 1), Rows(200, 2)
schedule = {"type": "WarmupCosineLR", "params": {"total_num_steps": STEPS, "warmup_num_steps": 10}}
engine = sluice.torch.Engine(
    Mixer(), optimizer=sluice.AdamW(lr=1e-3), device="64MiB", host="64MiB", nvme=["runs/drive"],
    run_dir="runs/loop", commit_every=20,
    config={"gradient_accumulation_steps": ACCUMULATION, "gradient_clipping": 1.0, "scheduler": schedule})
with engine:
    engine.prepare(*next(batches(training, 0)))  # records and plans; the run resumes, if there is a commit
    step = engine.info().step
    coming = batches(training, step * ACCUMULATION)
    while step < STEPS:
        torch.manual_seed(step)  # of the dropout: a step is the same after a restart
        for _ in range(ACCUMULATION):
            engine.backward(engine(*next(coming)))
            made = engine.step()
        step = made.step
        if step % 20 == 0:
            print(f"step {step}: loss {made.loss:.4f}, held out {evaluate(engine, held_out):.4f}, "
                  f"lr {made.learning_rate:.2e}", flush=True)
