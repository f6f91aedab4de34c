#!/usr/bin/env python3
"""Makes stored.json: codes, scales and expanded values of stored formats by bitsandbytes and PyTorch.

Needs torch (CPU), numpy and bitsandbytes. Usage: python3 make_stored.py [TARGET_DIR]
README.md describes the file. Matrices are not stored: both sides draw them from src/base/rng.h.
"""

import json
import logging
import pathlib
import sys

logging.disable(logging.WARNING)
import bitsandbytes
import numpy
import torch
from bitsandbytes import functional
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute

from make_fixtures import rng_normal

SEED = 20263
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SHAPES = [(1, 1), (1, 63), (3, 64), (5, 7), (33, 65), (7, 1000), (130, 256), (129, 130), (40, 512)]
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def matrix(stream, kind, rows, columns):
    """plain: normal numbers; the others change them as tests/kernels/test_kernels_stored.c does."""
    x = rng_normal(SEED, stream, rows * columns).astype(numpy.float32)
    index = numpy.arange(len(x))
    if kind == "zeros":
        x[index % 3 != 0] = 0
        x[: 2 * len(x) // 3] = 0
    elif kind == "tiny":  # around the smallest normal number and below
        x *= numpy.float32(2.0**-130) * numpy.exp2((index % 24).astype(numpy.float32))
    elif kind == "outlier":
        x[len(x) // 2] = 1e6
    elif kind == "steps":  # many values at the borders between two codes
        x = numpy.rint(x * 4).astype(numpy.float32) / 8
    elif kind == "huge":
        x *= numpy.float32(2.0**112)
    return torch.from_numpy(x).reshape(rows, columns)


def digest(tensor):
    """The sum of the bytes, each times an odd number of 64 bits that its place gives."""
    data = tensor.contiguous().view(torch.uint8).numpy().flatten().astype(numpy.uint64)
    places = numpy.arange(len(data), dtype=numpy.uint64)
    odd = (2 * places + 1) * numpy.uint64(0x9E3779B97F4A7C15)
    return f"{int(((data + 1) * odd).sum()):016x}"


def result(codes, scales, expand):
    return {"codes": digest(codes), "scales": digest(scales),
            **{name: digest(expand(dtype)) for name, dtype in DTYPES.items()}}


def int8(x):
    codes, state = functional.quantize_blockwise(x, blocksize=256)
    values = state.code[codes.flatten().int()] * state.absmax.repeat_interleave(256)[: x.numel()]
    return result(codes, state.absmax, values.to)


def int8_rows(x):
    codes, scales, _ = torch.ops.bitsandbytes.int8_vectorwise_quant(x)
    return result(codes, scales, torch.ops.bitsandbytes.int8_vectorwise_dequant(codes, scales).to)


def four_bits(kind):
    def of(x):
        codes, state = functional.quantize_4bit(x.flatten(), quant_type=kind)
        # PyTorch's own code: the AVX-512 one turns subnormal numbers of bf16 into 0
        expand = lambda dtype: _dequantize_4bit_compute(codes.flatten(), state.absmax, state.code, 64,
                                                        (x.numel(),), dtype)
        return result(codes, state.absmax, expand)
    return of


def doubled(kind):
    """The scales less the mean that is given: its sum has no defined order."""
    def of(x):
        codes, state = functional.quantize_4bit(x.flatten(), quant_type=kind)
        absmax = state.absmax
        offset = (absmax.double().sum() / len(absmax)).float()
        scale_codes, inner = functional.quantize_blockwise(absmax - offset, blocksize=256)
        scales = functional.dequantize_blockwise(scale_codes, inner) + offset
        expand = lambda dtype: _dequantize_4bit_compute(codes.flatten(), scales, state.code, 64,
                                                        (x.numel(),), dtype)
        packed = torch.cat([part.contiguous().view(torch.uint8).flatten()
                            for part in (inner.absmax, offset.reshape(1), scale_codes)])
        both = functional.quantize_4bit(x.flatten(), quant_type=kind, compress_statistics=True)[1]
        if not torch.allclose(both.offset, offset, rtol=1e-6, atol=0):
            sys.exit(f"bitsandbytes has the mean {both.offset}, not {offset}")
        return result(codes, packed, expand)
    return of


def fp8_rows(x):
    scales = x.abs().amax(dim=1) / 448
    codes = torch.where(scales[:, None] == 0, torch.zeros(()), x / scales[:, None])
    codes = codes.clamp(-448, 448).to(torch.float8_e4m3fn)
    return result(codes, scales, (codes.float() * scales[:, None]).to)


def fp8_blocks(x):
    rows, columns = x.shape
    padded = torch.zeros((rows + 127) // 128 * 128, (columns + 127) // 128 * 128)
    padded[:rows, :columns] = x
    blocks = padded.reshape(padded.shape[0] // 128, 128, padded.shape[1] // 128, 128)
    scales = blocks.abs().amax(dim=(1, 3)) / 448
    wide = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :columns]
    codes = torch.where(wide == 0, torch.zeros(()), x / wide)
    codes = codes.clamp(-448, 448).to(torch.float8_e4m3fn)
    return result(codes, scales, (codes.float() * wide).to)


def mxfp4(x):
    groups = x.reshape(-1, 32).double()
    exponent = torch.floor(torch.log2(groups.abs().amax(dim=1))).clamp(min=-125) - 2
    exponent = exponent.clamp(min=-127)
    ratio = groups / torch.exp2(exponent)[:, None]
    # the nearest value; of two, the one with the even code
    distance = (ratio[..., None].abs() - E2M1[:8].double()).abs()
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    code = order[distance[..., order].argmin(dim=-1)] + 8 * torch.signbit(ratio)
    values = E2M1[code] * torch.exp2(exponent.float())[:, None]
    code = code.flatten().to(torch.uint8)
    return result(code[0::2] | code[1::2] << 4, (exponent + 127).to(torch.uint8), values.flatten().to)


FORMATS = {"int8": int8, "int8_rows": int8_rows, "nf4": four_bits("nf4"), "nf4_double": doubled("nf4"),
           "fp4": four_bits("fp4"), "fp4_double": doubled("fp4"), "fp8_rows": fp8_rows,
           "fp8_blocks": fp8_blocks, "mxfp4": mxfp4}


def main():
    target = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    cases = []
    for stream, (rows, columns) in enumerate(SHAPES):
        for kind in ("plain", "zeros", "tiny", "outlier", "steps", "huge"):
            x = matrix(stream, kind, rows, columns)
            for name, function in FORMATS.items():
                if name != "mxfp4" or columns % 32 == 0:
                    cases.append({"format": name, "kind": kind, "stream": stream, "rows": rows,
                                  "columns": columns, **function(x)})
    made_by = f"bitsandbytes {bitsandbytes.__version__}, torch {torch.__version__}"
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    text = f'{{"made_by": "{made_by}", "seed": {SEED}, "cases": [\n{lines}\n]}}\n'
    (target / "stored.json").write_text(text)
    print(f"{len(cases)} cases")


main()
