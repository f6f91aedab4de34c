"""transformers' Trainer over an Engine: one subclass.

    pip install torch transformers accelerate
    python trainer.py
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import sluice
import sluice.torch


class SluiceTrainer(Trainer):
    """Forward, backward and update are the engine's; data, schedule, logs are the Trainer's.

    Gradients are clipped by the engine's config ("gradient_clipping"), not by max_grad_norm. The logs'
    grad_norm is 0; the real one is in runs/trainer/metrics.jsonl. label_smoothing_factor is not
    supported."""

    def __init__(self, *args, engine, **options):
        super().__init__(*args, **options)
        self.engine = engine
        self.optimizer = engine.optimizer

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = self.compute_loss(self.engine, self._prepare_inputs(inputs),
                                 num_items_in_batch=num_items_in_batch)
        if num_items_in_batch is not None:  # the loss is a share of the mean over the step's labels
            loss = loss * self.engine.accumulation
        self.engine.backward(loss)
        return loss.detach() / self.engine.accumulation

    def save_model(self, output_dir=None, _internal_call=False):
        self.engine.module.save_pretrained(output_dir or self.args.output_dir,
                                           state_dict=self.engine.state_dict())


class Lines(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = (torch.arange(32) * (index % 7 + 1)) % 100
        return {"input_ids": tokens, "labels": tokens}


model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=128, n_head=4, vocab_size=100, n_positions=32,
                                   bos_token_id=0, eos_token_id=0))
engine = sluice.torch.Engine(model, optimizer=sluice.AdamW(lr=1e-3), device="64MiB", host="32MiB",
                             nvme=["runs/drive"], run_dir="runs/trainer")
arguments = TrainingArguments(output_dir="runs/trainer-model", per_device_train_batch_size=8, max_steps=20,
                              logging_steps=5, max_grad_norm=0, save_strategy="no", report_to=[], use_cpu=True)
trainer = SluiceTrainer(model=model, args=arguments, train_dataset=Lines(), engine=engine)
trainer.train()
trainer.save_model()
engine.close()
