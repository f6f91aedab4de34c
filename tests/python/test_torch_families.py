"""Models of transformers, with random weights and all state on drives, beside plain PyTorch: one of
each way in which the library builds its models. Skipped where transformers is absent."""

import os
import tempfile
import unittest
import unittest.mock

try:
    import torch
    import transformers
except ImportError as error:
    raise unittest.SkipTest(f"this Python has no torch or no transformers: {error}") from None

import sluice
import sluice.torch
import torch_models as models

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT = {**SMALL, "vocab_size": 64, "max_position_embeddings": 64}
HALVES = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
          "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 64}
VISION = {**SMALL, "image_size": 16, "patch_size": 4}
EXPERTS = {**TEXT, "num_key_value_heads": 1, "output_router_logits": True}

#: Class of the model and of its configuration, the configuration, what a batch holds beside labels,
#: and the number of units.
FAMILIES = [
    ("BertForMaskedLM", "BertConfig", TEXT, "input_ids", 2),
    ("AlbertForMaskedLM", "AlbertConfig", {**TEXT, "embedding_size": 16}, "input_ids", 1),  # one block, used twice
    ("LlamaForCausalLM", "LlamaConfig", {**TEXT, "num_key_value_heads": 1}, "input_ids", 2),
    ("MixtralForCausalLM", "MixtralConfig", {**EXPERTS, "num_local_experts": 4}, "input_ids", 2),
    ("MambaForCausalLM", "MambaConfig", {**TEXT, "state_size": 4}, "input_ids", 2),
    ("T5ForConditionalGeneration", "T5Config",
     {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2, "vocab_size": 64,
      "decoder_start_token_id": 0}, "input_ids", 4),
    ("BartForConditionalGeneration", "BartConfig", {**HALVES, "encoder_layerdrop": 0.5}, "input_ids", 4),
    ("WhisperForConditionalGeneration", "WhisperConfig",
     {**HALVES, "num_mel_bins": 8, "max_source_positions": 16, "pad_token_id": 0, "bos_token_id": 1,
      "eos_token_id": 2, "decoder_start_token_id": 1}, "input_features", 4),
    ("Wav2Vec2ForCTC", "Wav2Vec2Config",  # random numbers of numpy
     {**SMALL, "vocab_size": 64, "conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 4),
      "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2,
      "mask_time_prob": 0.3, "mask_time_length": 2}, "input_values", 4),
    ("ViTForImageClassification", "ViTConfig", VISION, "pixel_values", 2),
    ("SwinForImageClassification", "SwinConfig",
     {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2],
      "window_size": 4}, "pixel_values", 2),
    ("SegformerForSemanticSegmentation", "SegformerConfig",  # lists of lists
     {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [16, 32],
      "patch_sizes": [3, 3], "strides": [2, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2],
      "decoder_hidden_size": 16}, "pixel_values", 4),
]


def batches(what, count=4):
    generator = torch.Generator().manual_seed(7)
    shapes = {"pixel_values": (2, 3, 16, 16), "input_features": (2, 8, 32), "input_values": (2, 600)}
    found = []
    for _ in range(count):
        tokens = torch.randint(3, 64, (2, 12), generator=generator)
        values = tokens if what == "input_ids" else torch.randn(shapes[what], generator=generator)
        found.append({what: values, "labels": tokens})
    return found


class WithLoss(torch.nn.Module):
    """The model, called as the loops of torch_models call it."""

    def __init__(self, model, labels):
        super().__init__()
        self.model = model
        self.labels = labels

    def forward(self, batch):
        return self.model(**{**batch, "labels": self.labels(batch["labels"])}).loss


def labels_of(name):
    if "Image" in name:
        return lambda tokens: tokens[:, 0] % 2
    if "Segmentation" in name:
        return lambda tokens: tokens[:, :1, None].expand(2, 16, 16) % 2
    return lambda tokens: tokens


class Families(unittest.TestCase):
    def test_losses(self):
        torch.set_num_threads(2)
        place = {"tiers": {"place": {"params": "nvme", "grads": "nvme", "optimizer": "nvme"}}}
        for model, config, options, what, units in FAMILIES:
            with self.subTest(model=model), tempfile.TemporaryDirectory() as folder:
                torch.manual_seed(3)
                built = getattr(transformers, model)(getattr(transformers, config)(**options))
                module = WithLoss(built.train(), labels_of(model))
                data = batches(what)
                self.seed()
                expected, _ = models.plain_losses(module, data)
                with sluice.torch.Engine(
                    module, optimizer=sluice.AdamW(lr=1e-3), device="4MiB", host="4MiB", config=place,
                    nvme=[os.path.join(folder, "drive")], run_dir=os.path.join(folder, "run"),
                ) as engine:
                    self.seed()
                    found = models.engine_losses(engine, data)
                    self.assertEqual(len(engine._holders) - 1, units)
                for one, other in zip(found, expected):
                    self.assertLessEqual(abs(one - other), 1e-6 * max(1.0, abs(other)))

    def seed(self):
        """Of numpy; the loops seed torch."""
        try:
            import numpy
        except ImportError:
            return
        numpy.random.seed(5)


if __name__ == "__main__":
    unittest.main()
