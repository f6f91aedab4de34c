"""GPT-2 of transformers, with random weights, in less memory than its states take.

    pip install torch transformers
    python gpt2.py      # 124M parameters: 2 GB of states, here in 600 MiB and on a drive, beside torch's
                        # own memory for activations and for the embedding, which is tied to the head
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import sluice
import sluice.torch

model = sluice.torch.init(lambda: GPT2LMHeadModel(GPT2Config()))
engine = sluice.torch.Engine(model, optimizer=sluice.AdamW(lr=1e-4), device="400MiB", host="200MiB",
                             nvme=["runs/drive"], run_dir="runs/gpt2", commit_every=10)
for step in range(20):
    tokens = torch.randint(0, 50257, (1, 256))
    loss = engine(input_ids=tokens, labels=tokens).loss
    engine.backward(loss)
    engine.step()
    print(step, loss.item())
print(f"planned {engine.plan().step_seconds:.2f} s a step")
print(f"measured {engine.profile().measured_seconds:.2f} s a step")
engine.close()
