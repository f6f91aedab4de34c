"""Quantized bases below adapters that learn: a stand-in with what makes them different from plain
parameters, and those of bitsandbytes and torchao, where these are installed."""

import importlib.util
import os
import unittest

try:
    import torch
except ImportError:
    raise unittest.SkipTest("this Python has no torch") from None

import sluice.torch
import torch_models as models
from test_torch_engine import PLACEMENTS
from torch_engines import Engines


DATA = [torch.randn(5, 32, generator=torch.Generator().manual_seed(1))] * 4


def has(*names):
    return all(importlib.util.find_spec(name) for name in names)


def bytes_of(value):
    value = value if type(value) is torch.Tensor else value.dequantize()
    return value.contiguous().reshape(-1).view(torch.uint8)


class Packed(torch.nn.Parameter):
    """Weights of eight bits in the memory of floats, and their scales beside them."""

    def __new__(cls, weight):
        scale = weight.abs().amax(1, keepdim=True) / 127
        bits = (weight / scale).round().to(torch.int8).view(torch.float32)
        made = torch.Tensor._make_subclass(cls, bits, False)
        made.scale = scale
        return made


class Multiply(torch.autograd.Function):
    """Keeps the memory of the weights for the backward itself, so that no hook sees it."""

    @staticmethod
    def forward(ctx, x, weight, scale):
        ctx.weight, ctx.scale = weight.detach().view(torch.int8), scale
        return x @ (ctx.weight * scale).t()

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ (ctx.weight * ctx.scale), None, None


class Adapted(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.weight = Packed(torch.randn(width, width) * 0.1)
        self.down, self.up = torch.nn.Linear(width, 3), torch.nn.Linear(3, width)

    def forward(self, x):
        return x + Multiply.apply(x, self.weight, self.weight.scale) + self.up(self.down(x))

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight.scale"] = self.weight.scale


class Model(torch.nn.Module):
    def __init__(self, block=Adapted):
        super().__init__()
        self.blocks = torch.nn.ModuleList([block() for _ in range(3)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


class AsLoss(torch.nn.Module):
    """A model of transformers, called as the loops of torch_models call it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(input_ids=tokens, labels=tokens).loss


class Quantized(Engines):
    def check(self, build, data):
        """The bits of a plain loop, also of a run that goes on, wherever states rest."""
        looped = build()
        learns = [p for p in looped.parameters() if p.requires_grad]
        optimizer = sluice.torch.AdamW(learns, lr=1e-3, host="32MiB")
        expected = models.loop_losses(looped, optimizer, data)
        wanted = {name: value.clone() for name, value in looped.state_dict().items()}
        optimizer.close()
        self.assertLess(expected[-1], expected[0])
        for config in PLACEMENTS[1:4]:
            found, name = [], f"run{self.count}"
            for part in (data[:2], data[2:]):
                engine = self.engine(build(), config=config, name=name)
                found += models.engine_losses(engine, part)
                state = engine.state_dict()
                engine.close()
            self.assertEqual(found, expected)
            self.assertEqual(list(state), list(wanted))
            for key, value in wanted.items():  # bytes of packed weights may be NaN
                same = torch.equal(bytes_of(state[key]), bytes_of(value))
                self.assertTrue(same, key)

    def test_all_that_is_odd(self):
        def build():
            torch.manual_seed(3)
            return Model()

        self.check(build, DATA)

    @unittest.skipUnless(has("transformers", "peft", "bitsandbytes"), "no transformers, peft or bitsandbytes")
    def test_bitsandbytes(self):
        import peft
        import transformers

        config = transformers.LlamaConfig(
            hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64)
        torch.manual_seed(3)
        folder = os.path.join(self.directory, "model")
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
        nf4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
        kinds = (
            (nf4, torch.float32),
            ({**nf4, "bnb_4bit_quant_storage": torch.bfloat16}, torch.bfloat16),
            ({"load_in_8bit": True}, torch.float32),
        )
        data = models.batches(models.Language, 1) * 4
        for options, dtype in kinds:
            def build():
                model = transformers.AutoModelForCausalLM.from_pretrained(
                    folder, dtype=dtype, device_map="cpu",
                    quantization_config=transformers.BitsAndBytesConfig(**options))
                if dtype == torch.float32:
                    model = peft.prepare_model_for_kbit_training(model)
                torch.manual_seed(4)
                lora = peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"])
                model = peft.get_peft_model(model, lora, autocast_adapter_dtype=dtype == torch.float32)
                return AsLoss(model.train())

            with self.subTest(dtype=dtype, **options):
                self.check(build, data)

    @unittest.skipUnless(has("torchao"), "no torchao")
    def test_torchao(self):
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.base = torch.nn.Linear(32, 32, bias=False).requires_grad_(False)
                self.down, self.up = torch.nn.Linear(32, 3), torch.nn.Linear(3, 32)

            def forward(self, x):
                return x + self.base(x) + self.up(self.down(x))

        def build():
            torch.manual_seed(3)
            model = Model(Block)
            quantize_(model, Int8WeightOnlyConfig(), lambda module, name: name.endswith("base"))
            return model

        self.check(build, DATA)


if __name__ == "__main__":
    unittest.main()
