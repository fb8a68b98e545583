"""GGUF files of a real shape that take no disk: descriptions of all tensors, and a hole in the place of their bytes, which are zeros.
For what reads shapes and types alone.
"""

from __future__ import annotations

import math
from pathlib import Path

from evidence.lib import networks, tiny_models
from evidence.lib.lazy import lazily

gguf = lazily("gguf")
np = lazily("numpy")

GEMMA_2_27B = tiny_models.Tiny(
    "Gemma-2-27B shape", "gemma2", layers=46, embd=4608, ff=36864, heads=32, kv_heads=16, head_dim=128, vocab=256000, context=8192,
    window=4096, attn_cap=50.0, logit_cap=30.0,
)  # fmt: skip

QWEN3_30B_A3B = tiny_models.Tiny(
    "Qwen3-30B-A3B shape", "qwen3moe", layers=48, embd=2048, heads=32, kv_heads=4, head_dim=128, vocab=151936, context=8192, base=1e6, qk_norm=True,
    tied=False, experts=128, used=8, expert_ff=768, normed=True,
)  # fmt: skip


def add_numbers(writer, m: tiny_models.Tiny) -> None:
    """Of the tokenizer, tokens alone, of a number."""
    writer.add_token_list([str(number) for number in range(m.vocab)])


def write(m: tiny_models.Tiny, path: Path, matrices: str = "BF16", vocabulary=add_numbers) -> Path:
    """Matrices of that type, the rest as F32, as are routers."""
    writer = gguf.GGUFWriter(path, m.arch)
    tiny_models.add_metadata(writer, m)
    vocabulary(writer, m)
    end = 0
    for name, shape in networks.shapes_of(m, biases=m.biases, qk_norm=m.qk_norm, experts=m.experts, expert_ff=m.expert_ff).items():
        small = len(shape) > 1 and not any(part in name for part in networks.ALWAYS_F32)
        kind = gguf.GGMLQuantizationType[matrices if small else "F32"]
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        size = math.prod(shape) // block * block_bytes
        # Of bytes, the writer makes elements.
        stored = shape if block == 1 else (*shape[:-1], shape[-1] // block * block_bytes)
        writer.add_tensor_info(name, stored, np.dtype(np.float32 if block == 1 else np.uint8), size, raw_dtype=kind)
        end += gguf.GGUFWriter.ggml_pad(size, writer.data_alignment)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    out = writer.fout[0]
    writer.write_padding(out, out.tell())
    out.truncate(out.tell() + end)
    writer.close()
    return path
