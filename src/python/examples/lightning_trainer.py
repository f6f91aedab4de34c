"""Lightning's Trainer with an optimizer whose state rests on a drive, and is committed and resumed.

Run it with a Python that has sluice and lightning: lightning_trainer.py [STEPS]
"""

import sys

import lightning
import torch

import sluice.torch


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(256, 4, dropout=0.0, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 4)

    def training_step(self, batch, index):
        loss = (self.layers(batch) - batch).square().mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        self.optimizer = sluice.torch.AdamW(
            self.parameters(), lr=1e-3, nvme=["runs/drive"], host="512MiB", run_dir="runs/lightning"
        )
        return self.optimizer

    def on_fit_end(self):
        self.optimizer.close()  # commits: the next start of the program goes on from there


if __name__ == "__main__":
    torch.manual_seed(0)
    trainer = lightning.Trainer(
        max_steps=int(sys.argv[1]) if len(sys.argv) > 1 else 20,
        accelerator="cpu",
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(320, 32, 256), batch_size=8))
