"""Every architecture against llama.cpp, on tiny models with random weights (tiny_models.py) made for this run.

1. F32 files: at every position of a text's second half (`--step N`: every N-th), the log-probabilities of the 256 best
   tokens that are within 10 of the best one.
   llama.cpp computes them exactly (F32 cache, no flash attention, one prefix after the other); ours come from
   `alight perplexity --save-logits`, in one batch and token by token. None may differ by more than 0.02. What there is
   to differ: keys and values are F16 in our cache (2^-11 of a value, through a few layers), llama.cpp's GELU goes
   through a table of F16, and what is saved has 16 bits (1.2e-4 at most).
2. Negative controls: the same weights with one thing wrong, for ours alone (another pairing, a window longer by one,
   local layers where global ones belong, another cap, no bias, ...). Each must leave that tolerance fivefold.
3. Files of smaller types, by the `gguf` package and by `alight quantize`, as they are and packed: exact is now
   llama.cpp on the same weights in F32. Token by token (16-bit activations) ours may differ by 0.1; in a batch (8-bit
   ones) the root mean square may be half as large again as that of llama.cpp itself, with 8-bit activations too; of a
   mixture of experts twice as large.
4. Greedy continuations by the F32 files: identical, or they part where llama.cpp has both tokens within 0.02.

Where experts are chosen, a tenth of the positions may differ by more, mistakes must be seen at nine of ten, and continuations
may part within 0.5: where two experts are nearly as good, rounding decides between them.

Nothing is recorded: llama.cpp runs each time, through xllamacpp.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from evidence.agree import greedy
from evidence.lib import checks, common, gguf_files, peers, process, tiny_models
from evidence.lib.lazy import lazily
from evidence.lib.llama import Llama
from evidence.lib.tiny_models import Tiny

np = lazily("numpy")

TOLERANCE = 0.02
CONTROL = 5 * TOLERANCE
ONE_BY_ONE = 0.1
ROOM = 1.5
# Of mixtures: where two experts are as good as equal, rounding turns the choice in either program, at other positions.
ROOM_OF_EXPERTS = 2.0
RANGE = 10.0
# Tokens of a text; the second half of the positions is compared.
CONTEXT = 96
FIRST, LAST = CONTEXT // 2, CONTEXT - 2
CANDIDATES = 256
GREEDY = 24

def other(m: Tiny, what: str, **change) -> Tiny:
    return replace(m, name=f"{m.name}, {what}", **change)


QKV = ("attn_q", "attn_k", "attn_v")
LLAMA = Tiny("llama", "llama", head_dim=40, heads=4, base=5e5, eps=1e-5, tied=False)
QWEN2 = Tiny("qwen2", "qwen2", base=1e6, biases=QKV, vocab=403)
QWEN3 = Tiny("qwen3", "qwen3", head_dim=40, heads=4, base=1e6, qk_norm=True, tied=False)
GEMMA2 = Tiny("gemma2", "gemma2", layers=5, head_dim=40, heads=4, window=12, attn_cap=8.0, logit_cap=9.0, vocab=733,
              qk_gain=2.0)
GEMMA3 = Tiny("gemma3", "gemma3", layers=7, head_dim=48, heads=4, kv_heads=1, base=1e6, qk_norm=True, window=12,
              vocab=733)

SCALES = (0.6, 0.25, 0.5, 1.6)
GRANITE = Tiny("granite", "granite", head_dim=40, heads=4, base=1e4, eps=1e-5, tied=False, scales=SCALES)
SEED_OSS = Tiny("seed_oss", "seed_oss", head_dim=40, heads=4, base=1e7, biases=QKV, tied=False)
SMOLLM3 = Tiny("smollm3", "smollm3", layers=5, head_dim=40, heads=4, base=1e4)
OLMO2 = Tiny("olmo2", "olmo2", layers=5, base=1e4, qk_norm="whole", tied=False, qk_gain=3.0)
EXAONE4 = Tiny("exaone4", "exaone4", layers=5, base=1e4, qk_norm=True, qk_gain=3.0)
QWEN2VL = Tiny("qwen2vl", "qwen2vl", base=1e6, biases=QKV, vocab=403, sections=(2, 3, 3, 0))
QWEN3VL = Tiny("qwen3vl", "qwen3vl", head_dim=40, heads=4, base=1e6, qk_norm=True, tied=False, sections=(8, 6, 6, 0))
ERNIE = Tiny("ernie4_5", "ernie4_5", base=1e4, eps=1e-5)
INTERNLM2 = Tiny("internlm2", "internlm2", base=1e4, eps=1e-5, tied=False)

# Seven experts of which a token goes through three, and widths that are no multiples of anything. Two layers, so that a
# near tie between experts (`near_ties`) changes few positions.
MOE = dict(layers=2, experts=7, used=3, expert_ff=44)
QWEN3MOE = Tiny("qwen3moe", "qwen3moe", head_dim=40, heads=4, base=1e6, qk_norm=True, tied=False, **MOE)
QWEN3VLMOE = Tiny("qwen3vlmoe", "qwen3vlmoe", head_dim=40, heads=4, base=1e6, qk_norm=True, tied=False, sections=(8, 6, 6, 0), **MOE)
QWEN2MOE = Tiny("qwen2moe", "qwen2moe", base=1e6, biases=QKV, shared_ff=72, vocab=403, tied=False, **MOE)
MIXTRAL = Tiny("llama, experts", "llama", head_dim=40, heads=4, base=1e6, eps=1e-5, tied=False, ff=44, **MOE)
OLMOE = Tiny("olmoe", "olmoe", heads=6, kv_heads=6, eps=1e-5, tied=False, qk_norm="whole", ff=44, **MOE)
GRANITEMOE = Tiny("granitemoe", "granitemoe", head_dim=40, heads=4, eps=1e-5, tied=False, scales=SCALES, ff=44, **MOE)

GPT_OSS = Tiny("gpt-oss", "gpt-oss", head_dim=40, heads=4, base=1.5e5, eps=1e-5, tied=False, window=12, scaling=("yarn", 8.0, 64),
               biases=(*QKV, "attn_output", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"), **MOE)
# Two heads of keys for six of values, and one layer of three that is attention, of which half a head is rotated.
QWEN35 = Tiny("qwen35", "qwen35", layers=5, head_dim=40, heads=4, base=1e5, qk_norm=True, tied=False, rope_dims=20,
              sections=(4, 3, 3, 0), delta=(2, 6, 32, 4, 3))
QWEN35MOE = Tiny("qwen35moe", "qwen35moe", head_dim=32, heads=4, base=1e5, qk_norm=True, rope_dims=16, vocab=403,
                 sections=(3, 3, 2, 0), delta=(1, 3, 16, 4, 2), shared_ff=72, **(MOE | dict(layers=4)))
QWEN3NEXT = Tiny("qwen3next", "qwen3next", head_dim=32, heads=4, base=1e5, qk_norm=True, rope_dims=16, vocab=403,
                 delta=(2, 6, 16, 4, 2), shared_ff=72, **(MOE | dict(layers=4)))
LOCAL = [True, True, False, True, False, True, False]
GEMMA4 = Tiny("gemma4", "gemma4", layers=7, head_dim=48, local_dim=24, heads=4, kv_heads=2, base=1e6, local_base=1e4, qk_norm=True,
              window=12, pattern=LOCAL, logit_cap=30.0, shared_kv=2, token_input=20, vocab=733)
GEMMA4MOE = other(GEMMA4, "experts", layers=3, pattern=LOCAL[1:4], token_input=0, values=False, shared_kv=0, experts=7, used=3, expert_ff=44)
# Wide feed-forward parts, since llama.cpp takes the deviation of a sample and the makers that of all gates. The longer one has layers
# without keys and values.
GEMMA3N = Tiny("gemma3n", "gemma3n", layers=6, ff=2048, head_dim=48, heads=4, base=1e6, local_base=1e4, qk_norm=True, window=12, vocab=733)
MISTRAL3 = Tiny("mistral3", "mistral3", head_dim=40, heads=4, eps=1e-5, tied=False, scaling=("yarn", 4.0, 16), temperature=0.3,
                log_multiplier=1.0)
GLM4 = Tiny("glm4", "glm4", head_dim=40, heads=4, eps=1e-5, tied=False, biases=QKV, rope_dims=20)
# (By "phi3" in its name llama.cpp would look for tokens of the real one.)
PHI3 = Tiny("phi 3", "phi3", eps=1e-5, tied=False)
NORMS = ("attn_norm", "ffn_norm", "output_norm")
PHIMOE = Tiny("phimoe", "phimoe", eps=1e-5, tied=False, biases=(*QKV, "attn_output", *NORMS, "output"), long_context=(32, 1.2), ff=44, **MOE)

GLM4MOE = Tiny("glm4moe", "glm4moe", head_dim=40, heads=4, base=1e6, eps=1e-5, tied=False, biases=QKV, rope_dims=20, leading=1,
               shared_ff=88, normed=True, weights_scale=1.7, **MOE)

# Five heads for 96 elements; of a query 24 elements that are not rotated and 12 that are.
DEEPSEEK2 = Tiny("deepseek2", "deepseek2", heads=5, kv_heads=1, base=1e4, tied=False, latent=(28, 40, 24, 12, 20, False), leading=1,
                 shared_ff=88, gating=2, normed=True, weights_scale=1.7, scaling=("yarn", 8.0, 32), log_multiplier=0.0707,
                 **(MOE | dict(layers=3)))
MINIMAX_M2 = Tiny("minimax-m2", "minimax-m2", head_dim=40, heads=4, base=1e6, tied=False, qk_norm="whole", qk_gain=3.0, rope_dims=20,
                  gating=2, ff=44, **MOE)
LLAMA4 = Tiny("llama4", "llama4", head_dim=40, heads=4, base=5e5, eps=1e-5, tied=False, rope_dims=40, interleave=2, shared_ff=44,
              gating=2, **(MOE | dict(layers=5, used=1)))
MISTRAL4 = Tiny("mistral4", "mistral4", heads=3, kv_heads=1, base=1e4, tied=False, latent=(30, 50, 14, 10, 22, False), shared_ff=44,
                gating=1, normed=True, scaling=("yarn", 8.0, 16), log_multiplier=0.1, temperature=0.3, **MOE)

ARCEE = Tiny("arcee", "arcee", head_dim=40, heads=4, base=1e4, eps=1e-5, tied=False)
STARCODER2 = Tiny("starcoder2", "starcoder2", base=1e5, eps=1e-5, vocab=403, biases=(*QKV, "attn_output", "ffn_up", "ffn_down", *NORMS))
STABLELM = Tiny("stablelm", "stablelm", base=1e4, eps=1e-5, tied=False, rope_dims=8, biases=(*QKV, *NORMS))
COMMAND_R = Tiny("command-r", "command-r", base=1e4, eps=1e-5, logit_scale=0.6)
COHERE2 = Tiny("cohere2", "cohere2", layers=5, head_dim=24, heads=4, base=1e4, eps=1e-5, logit_scale=0.6, window=12, vocab=397)
# (Where the file does not say it, llama.cpp divides logits by what the original multiplies them with.)
MINICPM = Tiny("minicpm", "minicpm", head_dim=40, heads=4, base=1e4, eps=1e-5, scales=(12.0, 0.0, 0.7, 96 / 256), logit_gain=1.0)
HUNYUAN = Tiny("hunyuan-dense", "hunyuan-dense", head_dim=40, heads=4, base=1e4, eps=1e-5, qk_norm=True, qk_gain=2.0)
# Convolutions of three tokens, attention in two layers.
LFM2 = Tiny("lfm2", "lfm2", layers=5, head_dim=24, heads=4, base=1e6, eps=1e-5, qk_norm=True, layout="ccaca", short_conv=3, qk_gain=2.0)
LFM2MOE = Tiny("lfm2moe", "lfm2moe", head_dim=24, heads=4, base=1e6, eps=1e-5, qk_norm=True, layout="cac", short_conv=3, leading=1,
               gating=2, **(MOE | dict(layers=3)))

# Mamba-2 of six heads in two groups, and attention in one layer of four, without rotation.
GRANITEHYBRID = Tiny("granitehybrid", "granitehybrid", head_dim=24, heads=4, eps=1e-5, tied=False, scales=SCALES, layout="mmam",
                     mamba=(6, 2, 32, 20, 4), rotated=False)

# Mixers and feed-forward parts by themselves, the last layer being one of the latter.
NEMOTRON_H = Tiny("nemotron_h", "nemotron_h", head_dim=24, heads=4, eps=1e-5, tied=False, layers=6, layout="mfamff", mamba=(6, 2, 32, 20, 4),
                  qk_gain=3.0)
NEMOTRON_H_MOE = Tiny("nemotron_h_moe", "nemotron_h_moe", head_dim=40, heads=4, eps=1e-5, tied=False, layout="mfaf", mamba=(6, 2, 32, 20, 4),
                      shared_ff=72, normed=True, weights_scale=1.7, qk_gain=3.0, **(MOE | dict(layers=4)))

GEMMA = Tiny("gemma", "gemma", head_dim=40, heads=4, vocab=397)
EXAONE = Tiny("exaone", "exaone", head_dim=40, heads=4, base=1e6, eps=1e-5, tied=False)
XVERSE = Tiny("xverse", "xverse", heads=6, kv_heads=6, tied=False)
QWEN = Tiny("qwen", "qwen", heads=6, kv_heads=6, tied=False, biases=("attn_qkv",))
CHATGLM = Tiny("chatglm", "chatglm", base=1e4, eps=1e-5, tied=False, biases=("attn_qkv",), rope_dims=8)
ORION = Tiny("orion", "orion", eps=1e-5, tied=False, biases=NORMS)
UNGATED = ("attn_output", "ffn_up", "ffn_down")
NEMOTRON = Tiny("nemotron", "nemotron", eps=1e-5, tied=False, rope_dims=8, biases=NORMS)
JAIS2 = Tiny("jais2", "jais2", eps=1e-5, tied=False, biases=(*QKV, *UNGATED, *NORMS))
FUSED = ("attn_qkv", *UNGATED, *NORMS)
GPT2 = Tiny("gpt2", "gpt2", heads=6, kv_heads=6, eps=1e-5, context=256, biases=FUSED)
STARCODER = Tiny("starcoder", "starcoder", kv_heads=1, eps=1e-5, context=256, biases=FUSED)
GPTNEOX = Tiny("gptneox", "gptneox", heads=6, kv_heads=6, eps=1e-5, tied=False, rope_dims=8, parallel=True, biases=FUSED)
CODESHELL = Tiny("codeshell", "codeshell", eps=1e-5, tied=False, biases=FUSED)
PHI2 = Tiny("phi 2", "phi2", heads=6, kv_heads=6, eps=1e-5, tied=False, rope_dims=8,
            biases=("attn_qkv", *UNGATED, "attn_norm", "output_norm", "output"))
FALCON = Tiny("falcon", "falcon", kv_heads=1, eps=1e-5, biases=("attn_norm", "output_norm"))
MAINCODER = Tiny("maincoder", "maincoder", head_dim=40, heads=4, eps=1e-5, qk_norm=True, qk_gain=2.0)
PANGU = Tiny("pangu-embedded", "pangu-embedded", head_dim=40, heads=4, eps=1e-5, biases=(*QKV, "attn_output"))
PLAMO = Tiny("plamo", "plamo", eps=1e-5, tied=False)
AFMOE = Tiny("afmoe", "afmoe", layers=5, head_dim=40, heads=4, base=1e4, eps=1e-5, tied=False, qk_norm=True, qk_gain=2.0, window=12, leading=1, shared_ff=88,
             normed=True, weights_scale=1.7, experts=7, used=3, expert_ff=44)
MAMBA2 = Tiny("mamba2", "mamba2", layers=5, tied=False, layout="mmmmm", mamba=(6, 2, 32, 20, 4))
DEEPSEEK = Tiny("deepseek", "deepseek", tied=False, leading=1, shared_ff=88, weights_scale=1.7, **(MOE | dict(layers=3)))
DOTS1 = Tiny("dots1", "dots1", head_dim=40, heads=4, kv_heads=4, base=1e6, tied=False, qk_norm=True, qk_gain=2.0, leading=1, shared_ff=88, gating=2,
             normed=True, weights_scale=1.7, **(MOE | dict(layers=3)))
BAILINGMOE = Tiny("bailingmoe", "bailingmoe", tied=False, rope_dims=16, shared_ff=88, normed=True, **MOE)
BAILINGMOE2 = Tiny("bailingmoe2", "bailingmoe2", heads=6, kv_heads=2, tied=False, qk_norm=True, qk_gain=2.0, rope_dims=8, leading=1, shared_ff=44,
                   gating=2, normed=True, weights_scale=1.7, **(MOE | dict(layers=3)))
HUNYUANMOE = Tiny("hunyuan-moe", "hunyuan-moe", head_dim=40, heads=4, eps=1e-5, qk_norm=True, qk_gain=2.0, shared_ff=72, ff=44, **MOE)
ERNIEMOE = Tiny("ernie4_5-moe", "ernie4_5-moe", base=1e4, eps=1e-5, leading=1, interleave=1, shared_ff=72, **(MOE | dict(layers=3)))
EXAONEMOE = Tiny("exaone-moe", "exaone-moe", layers=5, head_dim=40, heads=4, base=1e6, eps=1e-5, tied=False, qk_norm=True, qk_gain=2.0, window=12, leading=1,
                 shared_ff=72, gating=2, normed=True, weights_scale=1.7, experts=7, used=3, expert_ff=44)
MELLUM = Tiny("mellum", "mellum", layers=5, head_dim=40, heads=4, base=1e5, qk_norm=True, tied=False, window=12, scaling=("yarn", 4.0, 64), experts=7, used=3,
              expert_ff=44)
HYV3 = Tiny("hy_v3", "hy_v3", head_dim=40, heads=4, base=1e6, tied=False, qk_norm=True, qk_gain=2.0, leading=1, shared_ff=44, normed=True, weights_scale=1.7,
            **(MOE | dict(layers=3)))
GRANITESWA = Tiny("granite_swa", "granite_swa", layers=5, head_dim=40, heads=4, base=1e4, eps=1e-5, tied=False, scales=SCALES, window=12,
                  pattern=[True, True, False, True, True], rope_pattern=(True, False, True, True, True))
LAGUNA = Tiny("laguna", "laguna", layers=5, head_dim=40, base=5e5, local_base=1e4, eps=1e-5, tied=False, qk_norm=True, qk_gain=2.0, window=12, leading=1,
              per_layer=((4, 2, 160),) + ((6, 2, 160),) * 3 + ((4, 2, 160),), rope_dims=20, local_rope=40, scaling=("yarn", 8.0, 32), gate="head",
              shared_ff=72, normed=True, weights_scale=1.7, experts=7, used=3, expert_ff=44)
PLAMO3 = Tiny("plamo3", "plamo3", layers=9, head_dim=40, heads=4, base=1e6, local_base=1e4, qk_norm=True, qk_gain=2.0, window=12)
NANBEIGE = Tiny("nanbeige", "nanbeige", layers=3, head_dim=24, heads=4, base=1e5, tied=False, passes=3)
NONE5, SOME5 = (0.0,) * 5, (0.0, 0.4, 0.0, 0.3, 0.5)
STEP35 = Tiny("step35", "step35", layers=5, head_dim=40, base=5e5, local_base=1e4, eps=1e-5, tied=False, qk_norm=True, qk_gain=2.0, window=12, leading=1,
              pattern=[True, True, False, True, False], per_layer=((4, 2, 160), (6, 2, 160), (4, 2, 160), (6, 3, 160), (4, 2, 160)), rope_dims=40, factors=True,
              shared_ff=72, normed=True, weights_scale=1.7, limits=(SOME5, SOME5[::-1]), experts=7, used=3, expert_ff=44)
MIMO2 = Tiny("mimo2", "mimo2", layers=5, head_dim=40, value_dim=24, base=5e5, local_base=1e4, eps=1e-5, tied=False, window=12, leading=1, rope_dims=20,
             pattern=[False, True, True, False, True], sinks=(False, True, True, False, True), value_scale=0.7,
             per_layer=((4, 2, 160), (6, 3, 160), (6, 3, 160), (4, 1, 160), (4, 2, 160)), experts=7, used=3, expert_ff=44)
APERTUS = Tiny("apertus", "apertus", head_dim=40, heads=4, base=1e6, eps=1e-5, tied=False, qk_norm=True, qk_gain=2.0, factors=True,
               xielu=((0.8, 0.3, 1.2, 0.5), (0.4, 0.9, 0.2, 0.7), (0.5, 0.4, 0.6, 0.5), (-1e-6,) * 4))
COHERE2MOE = Tiny("cohere2moe", "cohere2moe", layers=6, head_dim=24, heads=4, base=1e4, eps=1e-5, logit_scale=0.6, window=12, vocab=397, leading=1, shared_ff=88,
                  normed=True, experts=7, used=3, expert_ff=44)
MAPLE = Tiny("maple", "maple", layers=5, head_dim=40, heads=4, base=1e5, qk_norm=True, tied=False, window=12, pattern=[True, False, True, True, False],
             limits=(SOME5, NONE5), experts=7, used=3, expert_ff=44)
OLMO = Tiny("olmo", "olmo", kv_heads=6, base=1e4, eps=1e-5, clamp=0.9)
DBRX = Tiny("dbrx", "dbrx", base=5e5, eps=1e-5, tied=False, clamp=0.9, ff=44, **MOE)
BITNET = Tiny("bitnet", "bitnet", base=5e5, eps=1e-5)
DECI = Tiny("deci", "deci", layers=7, embd=96, base=5e5, eps=1e-5, tied=False,
            per_layer=((6, 2, 160), (6, 0, 100), (0, 0, 60), (6, 3, 160), (0, 0, 44), (6, 6, 120), (6, 1, 90)))
OPENELM = Tiny("openelm", "openelm", head_dim=24, base=1e4, qk_norm=True, qk_gain=2.0, per_layer=((3, 1, 100), (6, 2, 130), (6, 3, 160), (9, 3, 90)))
MINICPM3 = Tiny("minicpm3", "minicpm3", heads=5, kv_heads=5, head_dim=12, base=1e4, eps=1e-5, latent=(28, 40, 24, 12, 20, True), long_context=(32, 1.2), logit_gain=1.0)
PLM = Tiny("plm", "plm", heads=4, kv_heads=4, base=1e5, latent=(0, 40, 24, 12, 20, True))
MPT = Tiny("mpt", "mpt", heads=6, kv_heads=6, eps=1e-5, context=256, alibi=True, clamp=2.0)
BLOOM = Tiny("bloom", "bloom", heads=6, kv_heads=6, eps=1e-5, context=256, biases=FUSED)
JAIS = Tiny("jais", "jais", heads=6, kv_heads=6, eps=1e-5, context=256, tied=False, alibi=True, qk_gain=3.0, biases=(*FUSED, "ffn_gate"))
REFACT = Tiny("refact", "refact", kv_heads=1, tied=False, context=256)
# (Where the number of layers is that of neither size, llama.cpp does not rotate.)
BAICHUAN = Tiny("baichuan", "baichuan", layers=32, embd=64, ff=64, heads=4, kv_heads=4, logit_gain=0.7, tied=False)
FALCONH1 = Tiny("falcon-h1", "falcon-h1", head_dim=24, heads=4, base=1e11, eps=1e-5, tied=False, mamba=(6, 2, 32, 20, 4), qk_gain=2.0)
MAMBA = Tiny("mamba", "mamba", layers=5, tied=False, layout="sssss", mamba=(192, 12, 10, 4))
JAMBA = Tiny("jamba", "jamba", layers=5, tied=False, layout="ssass", mamba=(192, 12, 10, 4), ff=44, qk_gain=3.0, experts=7, used=3, expert_ff=44, leading=1)
KIMI = Tiny("kimi-linear", "kimi-linear", heads=5, kv_heads=1, tied=False, layout="kkak", latent=(0, 40, 24, 12, 20, False), kda=(32, 4), leading=1, shared_ff=88,
            gating=2, normed=True, weights_scale=1.7, **(MOE | dict(layers=4)))
BAILING3 = Tiny("bailingmoe3", "bailingmoe3", heads=5, kv_heads=1, base=1e5, tied=False, layout="kkak", latent=(28, 40, 24, 12, 20, False), kda=(32, 4, -3.0), leading=1,
                shared_ff=88, gating=2, normed=True, weights_scale=1.7, limits=((0.0, 0.3, 0.0, 0.4), (0.4, 0.0, 0.3, 0.3)), **(MOE | dict(layers=4)))
SPARK = Tiny("spark2_5", "spark2_5", layers=5, head_dim=40, base=5e5, local_base=1e4, eps=1e-5, window=12, rope_dims=20, local_rope=40,
             pattern=[True, True, False, True, False], per_layer=((4, 2, 160), (6, 2, 160), (4, 2, 160), (6, 3, 160), (4, 1, 160)))
MUSE = Tiny("muse-glimmer", "muse-glimmer", layers=5, head_dim=40, heads=4, base=5e5, eps=1e-5, tied=False, qk_norm=True, qk_gain=2.0, window=12, logit_scale=0.6,
            logit_cap=9.0)
MINIMAX_M3 = Tiny("minimax-m3", "minimax-m3", head_dim=40, heads=4, base=1e6, tied=False, qk_norm=True, qk_gain=2.0, rope_dims=20, leading=1, shared_ff=88, gating=2,
                  normed=True, weights_scale=1.7, indexer=(2, 32, 16, 16, 1), **(MOE | dict(layers=3)))
SMALLTHINKER = Tiny("smallthinker", "smallthinker", layers=5, head_dim=40, heads=4, base=1e6, tied=False, gating=1, experts=7, used=3, expert_ff=44)
DEEPSEEK32 = replace(DEEPSEEK2, name="deepseek32", arch="deepseek32", indexer=(3, 64, 256), scaling=None, log_multiplier=None)
GLM_DSA = replace(DEEPSEEK32, name="glm-dsa", arch="glm-dsa", gating=None)
# (llama.cpp has the fourth component of a text's positions 0.)
HUNYUAN_VL = replace(HUNYUAN, name="hunyuan_vl", arch="hunyuan_vl", sections=(7, 7, 6, 0))
PADDLEOCR = replace(ERNIE, name="paddleocr", arch="paddleocr", sections=(2, 3, 3, 0))
# (llama.cpp computes heads in steps of up to 64 elements, without a rest.)
RWKV7 = Tiny("rwkv7", "rwkv7", embd=192, layers=4, tied=False, eps=1e-5, biases=("output_norm",), rwkv=(64, 12, 10, 9, 20))
ARWKV7 = Tiny("arwkv7", "arwkv7", embd=128, layers=4, tied=False, rwkv=(64, 12, 10, 9, 0))
RWKV6 = Tiny("rwkv6", "rwkv6", embd=192, heads=3, kv_heads=3, layers=4, tied=False, eps=1e-5, biases=("output_norm",), rwkv=(64, 12, 10), rescaled=2)
RWKV6QWEN2 = Tiny("rwkv6qwen2", "rwkv6qwen2", embd=256, heads=4, kv_heads=2, layers=4, tied=False, rwkv=(64, 12, 10))

YARN, LINEAR = ("yarn", 4.0, 64), ("linear", 4.0, 0)
ALL = (*QKV, "attn_output", "ffn_gate", "ffn_up", "ffn_down")
ODD = other(QWEN3, "odd sizes", embd=90, heads=3, kv_heads=1, head_dim=30, ff=151, vocab=397)
# What may not pass for a mixture of experts.
WRONG = {"sigmoid": dict(gating=2), "two experts": dict(used=2),
         "experts in another order": dict(rolled=1), "gate and up swapped": dict(swapped=True)}
CHOSEN = {"softmax of the chosen alone": dict(gating=3)}
# A model, and what may not pass for it.
CASES = [
    (LLAMA, {"NeoX rotary": dict(arch="qwen2")}),
    (other(LLAMA, "rope_freqs", factors=True), {"no factors": dict(factors=False)}),
    (other(LLAMA, "biases", biases=ALL), {f"none of {b}": dict(biases=tuple(a for a in ALL if a != b)) for b in ALL}),
    (other(LLAMA, "linear", scaling=LINEAR, base=1e4), {"not scaled": dict(scaling=None)}),
    (other(LLAMA, "yarn", scaling=YARN, base=1e4), {"linear": dict(scaling=LINEAR)}),
    (QWEN2, {"interleaved rotary": dict(arch="llama"), "no bias of k": dict(biases=("attn_q", "attn_v"))}),
    (other(QWEN2, "yarn", scaling=YARN, base=1e4), {"not scaled": dict(scaling=None)}),
    (QWEN3, {"q and k not normed": dict(arch="qwen2", qk_norm=False)}),
    (ODD, {"interleaved rotary, not normed": dict(arch="llama", qk_norm=False)}),
    (GEMMA2, {"window of 13": dict(window=13), "window of 11": dict(window=11), "all layers local": dict(pattern=0),
              "the second layer local": dict(pattern=[False, True, False, True, False]),
              "scores not capped": dict(attn_cap=0.0), "scores capped at 9": dict(attn_cap=9.0),
              "logits not capped": dict(logit_cap=0.0), "local layers' base 1000": dict(local_base=1000.0)}),
    (other(GEMMA2, "linear", scaling=LINEAR), {"not scaled": dict(scaling=None)}),
    (other(GEMMA2, "few keys", attn_cap=None, logit_cap=None, window=None, qk_gain=5.0, logit_gain=9.0),
     {"scores capped at 40": dict(attn_cap=40.0), "logits capped at 28": dict(logit_cap=28.0)}),
    (other(GEMMA2, "27B's layers", layers=46, embd=64, ff=64, heads=2, kv_heads=1, head_dim=16, qk_gain=1.0),
     {"the head's scale": dict(qk_gain=2**0.25)}),
    (GRANITE, {f"{what} not scaled": dict(scales=(*SCALES[:i], 1.0, *SCALES[i + 1 :]))
               for i, what in enumerate(("embedding", "scores", "residual", "logits"))}),
    (SEED_OSS, {"neighbours rotate": dict(arch="llama"), "the base of Llama": dict(base=1e4)}
     | {f"none of {b}": dict(biases=tuple(a for a in QKV if a != b)) for b in QKV}),
    (QWEN3MOE, WRONG | {"weights not normalised": dict(normed=False)}),
    (other(QWEN3MOE, "odd sizes", embd=90, heads=3, kv_heads=1, head_dim=30, expert_ff=37, experts=5, used=5, vocab=397),
     {"four experts": dict(used=4)}),
    (QWEN2MOE, WRONG | CHOSEN | {"weights normalised": dict(normed=True), "shared gate of 1/2": dict(zero=("ffn_gate_inp_shexp",)),
                        "no shared network": dict(zero=("ffn_down_shexp",))}),
    (MIXTRAL, WRONG | {"weights not normalised": dict(normed=False)}),
    (OLMOE, WRONG | CHOSEN | {"weights normalised": dict(normed=True)}),
    (GRANITEMOE, WRONG | {"weights not normalised": dict(normed=False)}),
    (other(GRANITEMOE, "shared", shared_ff=72), {"no shared network": dict(zero=("ffn_down_shexp",))}),
    (GPT_OSS, {f"none of {b}": dict(biases=tuple(a for a in GPT_OSS.biases if a != b)) for b in GPT_OSS.biases}
     | {k: v for k, v in WRONG.items() if k != "sigmoid"}
     | {"no sinks": dict(zero=("attn_sinks",)), "window of 13": dict(window=13), "all layers local": dict(pattern=0),
        "odd layers local": dict(pattern=[False, True] * 2), "not scaled": dict(scaling=None),
        "an original context of 32": dict(scaling=("yarn", 8.0, 32))}),
    (other(GPT_OSS, "odd sizes", embd=90, heads=6, kv_heads=1, head_dim=30, expert_ff=37, experts=5, used=2, vocab=397, window=40),
     {"window of 39": dict(window=39)}),
    (GEMMA4, {"window of 13": dict(window=13), "local layers' base 1000": dict(local_base=1e3), "scores of other layers": dict(base=1e3),
              "logits not capped": dict(logit_cap=None), "nothing from tokens": dict(zero=("per_layer_token_embd",)),
              "tokens' inputs of their embeddings missing": dict(zero=("per_layer_model_proj",))}),
    (other(GEMMA4, "no values, no inputs", token_input=0, values=False, shared_kv=0, embd=90, heads=3, kv_heads=1),
     {"window of 11": dict(window=11)}),
    (GEMMA4MOE, {"two experts": dict(used=2), "experts in another order": dict(rolled=1),
                 "sigmoid": dict(gating=2), "router's input not scaled": dict(zero=("ffn_gate_inp.scale",)),
                 "another norm of experts' inputs": dict(flipped=("pre_ffw_norm_2",)),
                 "norms of outputs": dict(flipped=("post_ffw_norm_1",)), "scales of experts": dict(flipped=("ffn_down_exps.scale",))}),
    (other(GEMMA4MOE, "odd sizes", layers=4, pattern=LOCAL[:4], embd=90, heads=3, kv_heads=1, expert_ff=37, experts=5, used=2),
     {"window of 11": dict(window=11)}),
    (GEMMA3N, {"window of 13": dict(window=13), "period of 4": dict(pattern=4), "local layers' base 1000": dict(local_base=1e3),
               "nothing from tokens": dict(zero=("per_layer_token_embd",)), "streams of other projections": dict(flipped=("altup_proj",)),
               "nothing past attention": dict(zero=("laurel_post_norm",)), "predictions of other streams": dict(flipped=("altup_predict_coef",)),
               "corrections of other streams": dict(flipped=("altup_correct_coef",)), "the first stream not scaled": dict(flipped=("altup_correct_scale",)),
               "streams joined otherwise": dict(flipped=("altup_unembd_proj",)), "routed by other elements": dict(flipped=("altup_router_norm",))}),
    (other(GEMMA3N, "odd sizes, shared keys", layers=23, embd=90, heads=3, kv_heads=1, head_dim=30, ff=2045, logit_gain=0.3),
     {"window of 11": dict(window=11)}),
    (GLM4MOE, {k: v for k, v in WRONG.items() if k != "sigmoid"}
     | {"softmax": dict(gating=1), "weights not normalised": dict(normed=False), "no scale": dict(weights_scale=None),
        "no bias of the choice": dict(zero=("exp_probs_b",)), "no shared network": dict(zero=("ffn_down_shexp",)),
        "whole heads rotated": dict(rope_dims=40)}),
    (other(GLM4MOE, "heads normed", qk_norm=True, biases=(), layers=3, leading=2, shared_ff=44), {"heads not normed": dict(qk_norm=False)}),
    (DEEPSEEK2, {k: v for k, v in WRONG.items() if k != "sigmoid"}
     | {"softmax": dict(gating=1), "weights not normalised": dict(normed=False), "no scale": dict(weights_scale=None),
        "no bias of the choice": dict(zero=("exp_probs_b",)), "no shared network": dict(zero=("ffn_down_shexp",)),
        "not scaled": dict(scaling=None), "another part in the scale": dict(log_multiplier=0.02),
        "no part in the scale": dict(log_multiplier=None), "an original context of 16": dict(scaling=("yarn", 8.0, 16)),
        "keys the other way round": dict(flipped=("attn_k_b",)), "values the other way round": dict(flipped=("attn_v_b",)),
        "another norm of latent rows": dict(flipped=("attn_kv_a_norm",)), "another norm of queries": dict(flipped=("attn_q_a_norm",))}),
    (other(DEEPSEEK2, "as before 2025, groups", embd=90, heads=7, kv_heads=7, latent=(0, 36, 18, 10, 14, True), gating=None, normed=False,
           weights_scale=3.0, scaling=None, log_multiplier=None, leading=2, experts=8, groups=(4, 2), used=3, vocab=397),
     {"no groups": dict(groups=None), "three groups": dict(groups=(4, 3)), "sigmoid": dict(gating=2), "weights normalised": dict(normed=True),
      "latent rows the other way round": dict(flipped=("attn_kv_b",))}),
    (MISTRAL4, {"no temperature": dict(temperature=None), "an original context of 32": dict(scaling=("yarn", 8.0, 32)),
                "another part in the scale": dict(log_multiplier=0.05), "sigmoid": dict(gating=2), "two experts": dict(used=2)}),
    (other(MISTRAL4, "odd sizes", embd=90, heads=4, latent=(0, 26, 15, 6, 33, False), temperature=None, layers=3, leading=1, vocab=397,
           experts=5, used=5),
     {"four experts": dict(used=4), "not scaled": dict(scaling=None), "values the other way round": dict(flipped=("attn_v_b",))}),
    (MINIMAX_M2, {"softmax": dict(gating=1), "two experts": dict(used=2), "experts in another order": dict(rolled=1),
                  "no bias of the choice": dict(zero=("exp_probs_b",)), "whole heads rotated": dict(rope_dims=40),
                  "another norm of keys": dict(flipped=("attn_k_norm",))}),
    (other(MINIMAX_M2, "odd sizes", embd=90, heads=3, kv_heads=1, head_dim=30, rope_dims=14, ff=37, expert_ff=37, experts=5, used=5, vocab=397),
     {"four experts": dict(used=4)}),
    (LLAMA4, {"two experts": dict(used=2), "experts in another order": dict(rolled=1), "gate and up swapped": dict(swapped=True),
              "no shared network": dict(zero=("ffn_down_shexp",)), "another base": dict(base=1e3)}),
    (other(LLAMA4, "odd sizes", embd=90, heads=3, kv_heads=1, head_dim=30, rope_dims=30, expert_ff=37, shared_ff=37, experts=2, used=2,
           interleave=1, layers=4, vocab=397), {"one expert": dict(used=1)}),
    (other(LLAMA4, "Maverick's experts", experts=128, expert_ff=20, shared_ff=20, layers=4, used=1), {"other experts": dict(rolled=5)}),
    (GEMMA3, {"window of 13": dict(window=13), "period of 5": dict(pattern=5), "one base": dict(local_base=1e6)}),
    (other(GEMMA3, "linear", scaling=LINEAR), {"not scaled": dict(scaling=None)}),
    (MISTRAL3, {"no temperature": dict(temperature=None), "another magnitude": dict(log_multiplier=0.5),
                "an original context of 24": dict(scaling=("yarn", 4.0, 24))}),
    (GLM4, {"all of a head rotated": dict(rope_dims=40)} | {f"none of {b}": dict(biases=tuple(a for a in QKV if a != b)) for b in QKV}),
    (PHI3, {"another base": dict(base=1e3)}),
    (other(PHI3, "short", long_context=(2048, 1.3)), {"other factors": dict(flipped=("short",)), "another magnitude": dict(long_context=(2048, 1.0)),
                                                      "factors of long sequences": dict(long_context=(32, 1.3))}),
    (other(PHI3, "long", long_context=(32, 1.3), rope_dims=12),
     {"other factors": dict(flipped=("long",)), "factors of short sequences": dict(long_context=(2048, 1.3)), "whole heads rotated": dict(rope_dims=16)}),
    (PHIMOE, {k: v for k, v in WRONG.items()} | {"weights not normalised": dict(normed=False), "factors of short sequences": dict(long_context=(2048, 1.2))}
     | {f"none of {b}": dict(biases=tuple(a for a in PHIMOE.biases if a != b)) for b in PHIMOE.biases}),
    (SMOLLM3, {"all layers rotated": dict(arch="llama")}),
    (other(SMOLLM3, "odd sizes", embd=90, heads=3, kv_heads=1, head_dim=30, ff=151, vocab=397),
     {"all layers rotated": dict(arch="llama")}),
    (OLMO2, {"normed per head": dict(arch="exaone4", qk_norm=True), "another base": dict(base=1e3)}),
    (other(OLMO2, "windows", window=12, scaling=YARN),
     {"no windows": dict(window=None), "window of 13": dict(window=13), "period of 3": dict(pattern=3),
      "no layer stretched": dict(scaling=None)}),
    (EXAONE4, {"all heads normed together": dict(arch="olmo2", qk_norm="whole"), "another base": dict(base=1e3)}),
    (other(EXAONE4, "32B's layers", layers=64, embd=64, ff=64, heads=2, kv_heads=1, head_dim=32, window=12),
     {"window of 13": dict(window=13), "period of 3": dict(pattern=3)}),
    (QWEN35, {"all of a head rotated": dict(rope_dims=40), "another base": dict(base=1e3),
              "values with their neighbours' keys": dict(rolled_keys=1), "the convolution backwards": dict(flipped=("ssm_conv1d",)),
              "decays of other heads": dict(flipped=("ssm_a",)), "no bias of decays": dict(zero=("ssm_dt",)),
              "rates of 1/2": dict(zero=("ssm_beta",)), "a gate of other inputs": dict(flipped=("attn_gate",))}),
    (QWEN3NEXT, WRONG | {"values with their neighbours' keys": dict(rolled_keys=1), "all of a head rotated": dict(rope_dims=32),
                         "rates and decays of other inputs": dict(flipped=("ssm_ba",)), "decays of other heads": dict(flipped=("ssm_a",)),
                         "shared gate of 1/2": dict(zero=("ffn_gate_inp_shexp",))}),
    (other(QWEN3NEXT, "odd sizes", layers=5, embd=90, heads=3, kv_heads=1, head_dim=30, rope_dims=14, expert_ff=37, experts=5, used=5,
           delta=(3, 6, 16, 3, 3)), {"another base": dict(base=1e3)}),
    (other(QWEN3NEXT, "as before December 2025", delta=(2, 6, 16, 4, 2, True)),
     {"inputs of other elements": dict(flipped=("ssm_in",)), "decays of other heads": dict(flipped=("ssm_a",)), "another base": dict(base=1e3)}),
    (other(QWEN3NEXT, "as before December 2025, odd sizes", layers=5, embd=90, heads=3, kv_heads=1, head_dim=30, rope_dims=14, expert_ff=37,
           experts=5, used=5, delta=(3, 3, 32, 3, 3, True)), {"another base": dict(base=1e3)}),
    (QWEN35MOE, WRONG | {"weights not normalised": dict(normed=False), "shared gate of 1/2": dict(zero=("ffn_gate_inp_shexp",))}),
    (LFM2, {"the convolution backwards": dict(flipped=("conv",)), "gates of other inputs": dict(flipped=("in_proj",)), "another base": dict(base=1e3),
            "a convolution of the present alone": dict(short_conv=1), "norms of heads reversed": dict(flipped=("attn_q_norm",))}),
    (other(LFM2, "odd sizes", layers=4, embd=90, heads=3, kv_heads=1, head_dim=30, ff=151, vocab=397, layout="acac", short_conv=4),
     {"the convolution backwards": dict(flipped=("conv",))}),
    (LFM2MOE, {k: v for k, v in WRONG.items() if k != "sigmoid"}
     | {"softmax": dict(gating=1), "weights not normalised": dict(normed=False), "no bias of the choice": dict(zero=("exp_probs_b",)),
        "no leading layer's part": dict(zero=("ffn_down",))}),
    (other(LFM2MOE, "odd sizes", embd=90, heads=3, kv_heads=1, head_dim=30, expert_ff=37, experts=5, used=2, leading=0, layout="ccac", layers=4),
     {"one expert": dict(used=1)}),
    (GRANITEHYBRID, {"the convolution backwards": dict(flipped=("ssm_conv1d",)), "no decays": dict(zero=("ssm_a",)),
                     "no bias of steps": dict(zero=("ssm_dt",)), "nothing past the states": dict(zero=("ssm_d",)),
                     "no bias of the convolution": dict(zero=("ssm_conv1d.bias",)), "rotated": dict(rotated=True),
                     "norms reversed": dict(flipped=("ssm_norm",))}),
    (other(GRANITEHYBRID, "odd sizes, experts, rotated", embd=72, heads=3, kv_heads=1, head_dim=30, ff=37, expert_ff=37, experts=5, used=2, vocab=397,
           shared_ff=44, layers=3, layout="mam", mamba=(3, 1, 48, 12, 3), rotated=True),
     {"no shared network": dict(zero=("ffn_down_shexp",)), "the convolution backwards": dict(flipped=("ssm_conv1d",))}),
    (NEMOTRON_H, {"the convolution backwards": dict(flipped=("ssm_conv1d",)), "no decays": dict(zero=("ssm_a",)),
                  "nothing past the states": dict(zero=("ssm_d",)), "norms reversed": dict(flipped=("ssm_norm",)),
                  "keys of other inputs": dict(flipped=("attn_k",)), "no feed-forward part": dict(zero=("ffn_down",)),
                  "feed-forward parts of other inputs": dict(flipped=("ffn_up",))}),
    (other(NEMOTRON_H, "odd sizes, biases", embd=72, heads=3, kv_heads=1, head_dim=30, ff=37, vocab=397, layout="fmafm", layers=5,
           mamba=(3, 1, 48, 12, 3), biases=("attn_output", "ffn_up", "ffn_down")),
     {f"none of {b}": dict(biases=tuple(a for a in ("attn_output", "ffn_up", "ffn_down") if a != b)) for b in ("attn_output", "ffn_up", "ffn_down")}),
    (NEMOTRON_H_MOE, {k: v for k, v in WRONG.items() if k not in ("sigmoid", "gate and up swapped")}
     | {"softmax": dict(gating=1), "weights not normalised": dict(normed=False), "no scale": dict(weights_scale=None),
        "no bias of the choice": dict(zero=("exp_probs_b",)), "no shared network": dict(zero=("ffn_down_shexp",))}),
    (other(NEMOTRON_H_MOE, "latent", layout="amff", qk_gain=1.0, latent_experts=52, experts=6, used=2),
     {"the latent row of other inputs": dict(flipped=("ffn_latent_down",)), "outputs of other latent rows": dict(flipped=("ffn_latent_up",)),
      "no shared network": dict(zero=("ffn_down_shexp",)), "one expert": dict(used=1)}),
    (other(NEMOTRON_H_MOE, "odd sizes", layers=5, layout="fmfam", embd=90, heads=3, kv_heads=1, head_dim=30, expert_ff=37, shared_ff=41, experts=5,
           used=5, vocab=397, mamba=(3, 1, 48, 12, 3), normed=None),
     {"weights normalised": dict(normed=True), "four experts": dict(used=4)}),
    (QWEN2VL, {"interleaved rotary": dict(arch="llama"), "no bias of k": dict(biases=("attn_q", "attn_v"))}),
    (QWEN3VL, {"q and k not normed": dict(arch="qwen2", qk_norm=False)}),
    (other(QWEN3VL, "odd sizes", embd=90, heads=3, kv_heads=1, head_dim=30, ff=151, vocab=397, sections=(6, 5, 4, 0)), {"another base": dict(base=1e3)}),
    (QWEN3VLMOE, WRONG | {"weights not normalised": dict(normed=False)}),
    (other(QWEN3VLMOE, "odd sizes", embd=90, heads=3, kv_heads=1, head_dim=30, expert_ff=37, experts=5, used=5, vocab=397, sections=(6, 5, 4, 0)),
     {"four experts": dict(used=4)}),
    (ERNIE, {"NeoX rotary": dict(arch="qwen2")}),
    (INTERNLM2, {"NeoX rotary": dict(arch="qwen2")}),
    (ARCEE, {"another base": dict(base=1e3), "other inputs": dict(flipped=("ffn_up",))}),
    (other(ARCEE, "odd sizes, yarn", embd=90, heads=3, kv_heads=1, head_dim=30, ff=151, vocab=397, scaling=YARN), {"not scaled": dict(scaling=None)}),
    (STARCODER2, {f"none of {b}": dict(biases=tuple(a for a in STARCODER2.biases if a != b)) for b in STARCODER2.biases}
     | {"another base": dict(base=1e3)}),
    (other(STARCODER2, "odd sizes", embd=90, heads=3, kv_heads=1, head_dim=30, ff=151, tied=False), {"another base": dict(base=1e3)}),
    (STABLELM, {f"none of {b}": dict(biases=tuple(a for a in STABLELM.biases if a != b)) for b in STABLELM.biases}
     | {"whole heads rotated": dict(rope_dims=16)}),
    (other(STABLELM, "12B's layers", layers=3, qk_norm="own", qk_gain=3.0, biases=("attn_norm", "output_norm")),
     {"norms of heads reversed": dict(flipped=("attn_q_norm",)), "none of attn_norm": dict(biases=("output_norm",))}),
    (COMMAND_R, {"logits not scaled": dict(logit_scale=None), "another base": dict(base=1e3)}),
    (COHERE2, {"logits not scaled": dict(logit_scale=None), "window of 13": dict(window=13), "period of 3": dict(pattern=3),
               "all layers rotated, no windows": dict(arch="command-r")}),
    (other(COHERE2, "odd sizes", layers=8, embd=90, heads=3, kv_heads=1, head_dim=30, ff=151), {"window of 11": dict(window=11)}),
    (MINICPM, {f"{what} not scaled": dict(scales=tuple(0.0 if j == i else x for j, x in enumerate(MINICPM.scales)))
               for i, what in ((0, "embedding"), (2, "residual"), (3, "logits"))}),
    (other(MINICPM, "odd sizes", embd=90, heads=3, kv_heads=1, head_dim=30, ff=151, vocab=397, scales=(0.6, 0.0, 0.5, 1.6)),
     {"as of MiniCPM 1": dict(scales=None)}),
    (HUNYUAN, {"normed before they are rotated": dict(arch="qwen3")}),
    (other(HUNYUAN, "odd sizes", embd=90, heads=3, kv_heads=1, head_dim=30, ff=151, vocab=397), {"normed before": dict(arch="qwen3")}),
    (GEMMA, {"another base": dict(base=1e3), "an embedding that is not scaled": dict(arch="exaone")}),
    (EXAONE, {"interleaved rotary": dict(arch="llama")}),
    (other(EXAONE, "rope_freqs", factors=True), {"no factors": dict(factors=False)}),
    (XVERSE, {"NeoX rotary": dict(arch="exaone")}),
    (QWEN, {"no bias": dict(biases=()), "another base": dict(base=1e3)}),
    (CHATGLM, {"no bias": dict(biases=()), "whole heads rotated": dict(rope_dims=16)}),
    (ORION, {f"none of {b}": dict(biases=tuple(a for a in NORMS if a != b)) for b in NORMS} | {"another base": dict(base=1e3)}),
    (NEMOTRON, {f"none of {b}": dict(biases=tuple(a for a in NORMS if a != b)) for b in NORMS}
     | {"whole heads rotated": dict(rope_dims=16), "GELU": dict(arch="starcoder2")}),
    (JAIS2, {f"none of {b}": dict(biases=tuple(a for a in JAIS2.biases if a != b)) for b in JAIS2.biases if b != "attn_k"}),
    (GPT2, {f"none of {b}": dict(biases=tuple(a for a in FUSED if a != b)) for b in FUSED} | {"no positions": dict(zero=("position_embd",))}),
    (STARCODER, {"no positions": dict(zero=("position_embd",)), "other positions": dict(flipped=("position_embd",))}),
    (GPTNEOX, {"one part after the other": dict(parallel=False), "whole heads rotated": dict(rope_dims=16)}),
    (other(GPTNEOX, "one after the other", parallel=False), {"parallel": dict(parallel=True)}),
    (CODESHELL, {f"none of {b}": dict(biases=tuple(a for a in FUSED if a != b)) for b in FUSED} | {"another base": dict(base=1e3)}),
    (PHI2, {f"none of {b}": dict(biases=tuple(a for a in PHI2.biases if a != b)) for b in PHI2.biases} | {"whole heads rotated": dict(rope_dims=16)}),
    (FALCON, {"none of attn_norm": dict(biases=("output_norm",)), "another base": dict(base=1e3)}),
    (other(FALCON, "40B's norms", two_norms=True, kv_heads=2), {"another norm of attention": dict(flipped=("attn_norm_2",))}),
    (MAINCODER, {"not normed": dict(arch="llama", qk_norm=False), "another base": dict(base=1e3)}),
    (PANGU, {f"none of {b}": dict(biases=tuple(a for a in PANGU.biases if a != b)) for b in PANGU.biases if b != "attn_k"}
     | {"interleaved rotary": dict(arch="llama")}),
    (PLAMO, {"another base": dict(base=1e3), "interleaved rotary": dict(rope_dims=8)}),
    (AFMOE, {k: v for k, v in WRONG.items() if k != "sigmoid"}
     | {"softmax": dict(gating=1), "weights not normalised": dict(normed=False), "no scale": dict(weights_scale=None), "window of 13": dict(window=13),
        "no bias of the choice": dict(zero=("exp_probs_b",)), "no shared network": dict(zero=("ffn_down_shexp",)), "gates of 1/2": dict(zero=("attn_gate",)),
        "other gates": dict(flipped=("attn_gate",)), "another base": dict(base=1e3)}),
    (MAMBA2, {"the convolution backwards": dict(flipped=("ssm_conv1d",)), "no decays": dict(zero=("ssm_a",)),
              "nothing past the states": dict(zero=("ssm_d",)), "norms reversed": dict(flipped=("ssm_norm",))}),
    (DEEPSEEK, {"two experts": dict(used=2), "experts in another order": dict(rolled=1), "gate and up swapped": dict(swapped=True),
                "no scale": dict(weights_scale=None), "no shared network": dict(zero=("ffn_down_shexp",))}),
    (DOTS1, {k: v for k, v in WRONG.items() if k != "sigmoid"}
     | {"softmax": dict(gating=1), "weights not normalised": dict(normed=False), "no scale": dict(weights_scale=None),
        "no bias of the choice": dict(zero=("exp_probs_b",)), "no shared network": dict(zero=("ffn_down_shexp",))}),
    (BAILINGMOE, {k: v for k, v in WRONG.items() if k != "sigmoid"}
     | {"weights not normalised": dict(normed=False), "no shared network": dict(zero=("ffn_down_shexp",))}),
    (BAILINGMOE2, {k: v for k, v in WRONG.items() if k != "sigmoid"}
     | {"softmax": dict(gating=1), "weights not normalised": dict(normed=False), "no scale": dict(weights_scale=None),
        "no bias of the choice": dict(zero=("exp_probs_b",)), "no shared network": dict(zero=("ffn_down_shexp",)),
        "whole heads rotated": dict(rope_dims=16)}),
    (HUNYUANMOE, {k: v for k, v in WRONG.items() if k != "sigmoid"} | {"no shared network": dict(zero=("ffn_down_shexp",))}),
    (ERNIEMOE, {k: v for k, v in WRONG.items() if k != "sigmoid"}
     | {"no bias of the choice": dict(zero=("exp_probs_b",)), "no shared network": dict(zero=("ffn_down_shexp",))}),
    (EXAONEMOE, {k: v for k, v in WRONG.items() if k != "sigmoid"}
     | {"softmax": dict(gating=1), "no scale": dict(weights_scale=None), "window of 13": dict(window=13), "another base": dict(base=1e3),
        "no bias of the choice": dict(zero=("exp_probs_b",)), "no shared network": dict(zero=("ffn_down_shexp",))}),
    (MELLUM, WRONG | {"window of 13": dict(window=13), "not scaled": dict(scaling=None), "period of 3": dict(pattern=3)}),
    (PLAMO3, {"period of 7": dict(pattern=7), "window of 13": dict(window=13), "another local base": dict(local_base=1e3), "norms reversed": dict(flipped=("attn_q_norm",)),
              "outputs normed otherwise": dict(flipped=("post_ffw_norm",))}),
    (NANBEIGE, {"two passes": dict(passes=2), "no norm in between": dict(passes_unnormed=True), "another base": dict(base=1e3)}),
    (other(NANBEIGE, "no norm in between", layers=2, embd=90, heads=3, kv_heads=1, head_dim=30, ff=151, vocab=397, passes=2, passes_unnormed=True),
     {"one pass": dict(passes=1), "norms in between": dict(passes_unnormed=False)}),
    (HYV3, {k: v for k, v in WRONG.items() if k != "sigmoid"}
     | {"softmax": dict(gating=1), "weights not normalised": dict(normed=False), "no scale": dict(weights_scale=None),
        "no bias of the choice": dict(zero=("exp_probs_b",)), "no shared network": dict(zero=("ffn_down_shexp",))}),
    (GRANITESWA, {"no sinks": dict(zero=("attn_sinks",)), "window of 13": dict(window=13), "other layers with windows": dict(pattern=[True, False, True, True, True]),
                  "other layers rotated": dict(rope_pattern=(True, True, False, True, True)), "another base": dict(base=1e3)}),
    (other(GRANITESWA, "experts", layers=2, pattern=[False, True], rope_pattern=(), ff=44, experts=7, used=3, expert_ff=44), WRONG),
    (LAGUNA, {k: v for k, v in WRONG.items() if k != "sigmoid"}
     | {"softmax": dict(gating=1), "weights not normalised": dict(normed=False), "window of 13": dict(window=13), "another local base": dict(local_base=1e3),
        "as many elements rotated with a window": dict(local_rope=20), "not scaled": dict(scaling=None), "gates of other inputs": dict(flipped=("attn_gate",)),
        "the last layer of a period without a window": dict(pattern=[True, True, True, False, True]), "no shared network": dict(zero=("ffn_down_shexp",))}),
    (other(LAGUNA, "elements gated, no window", layers=3, window=None, per_layer=((4, 2, 160),) * 3, gate="element", scaling=None, local_rope=None, local_base=None),
     {"gates of other inputs": dict(flipped=("attn_gate",)), "another base": dict(base=1e3)}),
    (STEP35, {k: v for k, v in WRONG.items() if k != "sigmoid"}
     | {"softmax": dict(gating=1), "window of 13": dict(window=13), "another local base": dict(local_base=1e3), "no factors": dict(factors=False),
        "gates of other inputs": dict(flipped=("attn_gate",)), "experts not limited": dict(limits=(NONE5, SOME5[::-1])),
        "shared experts not limited": dict(limits=(SOME5, NONE5)), "no shared network": dict(zero=("ffn_down_shexp",))}),
    (MIMO2, {k: v for k, v in WRONG.items() if k != "sigmoid"}
     | {"window of 13": dict(window=13), "another local base": dict(local_base=1e3), "no sinks": dict(zero=("attn_sinks",)),
        "values not scaled": dict(value_scale=None), "whole heads rotated": dict(rope_dims=40), "no bias of the choice": dict(zero=("exp_probs_b",))}),
    (APERTUS, {"alphas of other layers": dict(xielu=(APERTUS.xielu[0][::-1], *APERTUS.xielu[1:])),
               "alphas of other signs": dict(xielu=(APERTUS.xielu[1], APERTUS.xielu[0], *APERTUS.xielu[2:])),
               "another beta": dict(xielu=(*APERTUS.xielu[:2], (0.5,) * 4, APERTUS.xielu[3])), "no factors": dict(factors=False), "another base": dict(base=1e3)}),
    (COHERE2MOE, {k: v for k, v in WRONG.items() if k != "sigmoid"}
     | {"softmax": dict(gating=1), "logits not scaled": dict(logit_scale=None), "window of 13": dict(window=13), "period of 3": dict(pattern=3),
        "weights not normalised": dict(normed=False), "no shared network": dict(zero=("ffn_down_shexp",)), "another base": dict(base=1e3)}),
    (MAPLE, WRONG | {"window of 13": dict(window=13), "not limited": dict(limits=(NONE5, NONE5)), "another base": dict(base=1e3)}),
    (OLMO, {"not clamped": dict(clamp=None), "another clamp": dict(clamp=0.8), "another base": dict(base=1e3)}),
    (DBRX, WRONG | {"not clamped": dict(clamp=None), "another base": dict(base=1e3)}),
    (BITNET, {"another norm of heads": dict(flipped=("attn_sub_norm",)), "another norm inside": dict(flipped=("ffn_sub_norm",)), "another base": dict(base=1e3)}),
    (DECI, {"another base": dict(base=1e3), "other projections": dict(flipped=("attn_output",))}),
    (OPENELM, {"another base": dict(base=1e3), "another norm of queries": dict(flipped=("attn_q_norm",))}),
    (MINICPM3, {"factors of short sequences": dict(long_context=(2048, 1.2)), "another magnitude": dict(long_context=(32, 1.0)),
                "latent rows the other way round": dict(flipped=("attn_kv_b",)), "another base": dict(base=1e3)}),
    (PLM, {"latent rows the other way round": dict(flipped=("attn_kv_b",)), "another base": dict(base=1e3)}),
    (MPT, {"no biases of scores": dict(alibi=False), "another clamp": dict(clamp=1.0), "other heads": dict(flipped=("attn_output",))}),
    (other(MPT, "positions, biases", alibi=False, positions=True, clamp=None, biases=FUSED),
     {"no positions": dict(zero=("position_embd",))}
     | {f"none of {b}": dict(biases=tuple(a for a in FUSED if a != b)) for b in FUSED}),
    (BLOOM, {f"none of {b}": dict(biases=tuple(a for a in FUSED if a != b)) for b in FUSED}
     | {"another norm of embeddings": dict(flipped=("token_embd_norm",)), "no slopes": dict(arch="gptneox", rope_dims=2, parallel=False, base=1e9)}),
    (JAIS, {f"none of {b}": dict(biases=tuple(a for a in JAIS.biases if a != b)) for b in JAIS.biases}),
    (REFACT, {"no slopes": dict(arch="llama")}),
    (other(REFACT, "heads that are no power of two", heads=12, head_dim=8, kv_heads=4), {"no slopes": dict(arch="llama")}),
    (BAICHUAN, {"NeoX rotary": dict(arch="exaone")}),
    (other(BAICHUAN, "13B's layers", layers=40, context=256, logit_gain=0.5), {"rotated": dict(arch="llama")}),
    (FALCONH1, {"the convolution backwards": dict(flipped=("ssm_conv1d",)), "no decays": dict(zero=("ssm_a",)), "nothing past the states": dict(zero=("ssm_d",)),
                "norms reversed": dict(flipped=("ssm_norm",)), "another base": dict(base=1e4), "no attention": dict(zero=("attn_output",)),
                "no state space": dict(zero=("ssm_out",))}),
    (MAMBA, {"the convolution backwards": dict(flipped=("ssm_conv1d",)), "no decays": dict(zero=("ssm_a",)), "nothing past the states": dict(zero=("ssm_d",)),
             "decays of other elements": dict(flipped=("ssm_a",)), "no bias of steps": dict(zero=("ssm_dt.bias",)), "steps, keys and queries normed": dict(mamba_normed=True)}),
    (other(MAMBA, "normed, odd sizes", embd=72, vocab=397, mamba=(144, 4, 7, 3), layout="ssss", layers=4, mamba_normed=True), {"not normed": dict(mamba_normed=False)}),
    (JAMBA, {k: v for k, v in WRONG.items() if k != "sigmoid"} | {"the convolution backwards": dict(flipped=("ssm_conv1d",)), "no decays": dict(zero=("ssm_a",)),
             "another norm of steps": dict(flipped=("ssm_dt_norm",)), "another norm of keys": dict(flipped=("ssm_b_norm",)),
             "another norm of queries": dict(flipped=("ssm_c_norm",)), "no attention": dict(zero=("attn_output",))}),
    (KIMI, {k: v for k, v in WRONG.items() if k != "sigmoid"} | {"the convolution backwards": dict(flipped=("ssm_conv1d_k",)), "no decays": dict(zero=("ssm_a",)),
            "no bias of decays": dict(zero=("ssm_dt.bias",)), "rates of 1/2": dict(zero=("ssm_beta",)), "decays of other inputs": dict(flipped=("ssm_f_b",)),
            "gates of other inputs": dict(flipped=("ssm_g_b",)), "another norm of outputs": dict(flipped=("ssm_norm",)), "no shared network": dict(zero=("ffn_down_shexp",)),
            "keys the other way round": dict(flipped=("attn_k_b",))}),
    (BAILING3, {k: v for k, v in WRONG.items() if k != "sigmoid"} | {"the convolution backwards": dict(flipped=("ssm_conv1d_q",)), "another bound": dict(kda=(32, 4, -2.0)),
                "rates of 1/2": dict(zero=("ssm_beta",)), "gates of heads of 1/2": dict(zero=("attn_gate",)), "experts not limited": dict(limits=((0.0,) * 4, (0.4, 0.0, 0.3, 0.3))),
                "shared networks not limited": dict(limits=((0.0, 0.3, 0.0, 0.4), (0.0,) * 4)), "another base": dict(base=1e3), "no shared network": dict(zero=("ffn_down_shexp",))}),
    (other(FALCONH1, "odd sizes", embd=72, heads=3, kv_heads=1, head_dim=30, ff=37, vocab=397, layers=3, base=1e4, mamba=(3, 1, 48, 12, 3)),
     {"the convolution backwards": dict(flipped=("ssm_conv1d",)), "another base": dict(base=1e3)}),
    (other(JAMBA, "dense, odd sizes", embd=72, heads=3, kv_heads=1, head_dim=24, ff=37, vocab=397, layers=4, layout="sasa", mamba=(144, 8, 5, 3), experts=0, leading=0, qk_gain=1.0),
     {"the convolution backwards": dict(flipped=("ssm_conv1d",)), "no attention": dict(zero=("attn_output",))}),
    (other(KIMI, "odd sizes", embd=90, heads=3, latent=(0, 36, 18, 10, 14, False), kda=(16, 3), layout="kakk", expert_ff=37, shared_ff=37, experts=5, used=5, vocab=397),
     {"four experts": dict(used=4), "the convolution backwards": dict(flipped=("ssm_conv1d_v",))}),
    (other(BAILING3, "odd sizes, groups", embd=90, heads=3, latent=(0, 36, 18, 10, 14, False), kda=(48, 3, -5.0), layout="kaka", expert_ff=37, shared_ff=37, experts=8, groups=(4, 2),
           limits=(), vocab=397), {"no groups": dict(groups=None), "the convolution backwards": dict(flipped=("ssm_conv1d_v",))}),
    (other(LAGUNA, "odd sizes", layers=3, embd=90, head_dim=30, rope_dims=14, local_rope=30, per_layer=((3, 1, 151), (5, 1, 151), (6, 3, 151)), expert_ff=37, shared_ff=41,
           experts=5, used=5, vocab=397), {"four experts": dict(used=4), "window of 11": dict(window=11)}),
    (other(MIMO2, "odd sizes", layers=3, embd=90, head_dim=30, value_dim=22, rope_dims=14, pattern=[True, False, True], sinks=(True, False, False), value_scale=None,
           per_layer=((3, 1, 151), (5, 1, 151), (6, 3, 151)), expert_ff=37, experts=5, used=5, vocab=397), {"four experts": dict(used=4), "window of 11": dict(window=11)}),
    (other(STEP35, "odd sizes, no gates", arch="step35", layers=3, embd=90, head_dim=30, rope_dims=28, factors=False, pattern=[True, False, True], limits=(), gate="none",
           per_layer=((3, 1, 151), (5, 1, 151), (6, 3, 151)), expert_ff=37, shared_ff=41, experts=5, used=5, vocab=397), {"four experts": dict(used=4), "window of 11": dict(window=11)}),
    (other(APERTUS, "odd sizes", layers=3, embd=90, heads=3, kv_heads=1, head_dim=30, ff=151, vocab=397, factors=False, xielu=tuple(x[:3] for x in APERTUS.xielu)),
     {"another base": dict(base=1e3)}),
    (other(BLOOM, "odd sizes", layers=3, embd=90, heads=5, kv_heads=5, head_dim=18, ff=151, vocab=397), {"another norm of embeddings": dict(flipped=("token_embd_norm",))}),
    (SPARK, {"window of 13": dict(window=13), "another local base": dict(local_base=1e3), "as many elements rotated with a window": dict(local_rope=20),
             "gates of other inputs": dict(flipped=("attn_gate",))}),
    (MUSE, {"window of 13": dict(window=13), "logits not scaled": dict(logit_scale=None), "logits not capped": dict(logit_cap=None), "gates of other inputs": dict(flipped=("attn_gate",)),
            "period of 3": dict(pattern=3), "another norm of outputs": dict(flipped=("post_attention_norm",)), "another base": dict(base=1e3)}),
    (MINIMAX_M3, {k: v for k, v in WRONG.items() if k != "sigmoid"}
     | {"softmax": dict(gating=1), "weights not normalised": dict(normed=False), "no scale": dict(weights_scale=None), "whole heads rotated": dict(rope_dims=40),
        "no bias of the choice": dict(zero=("exp_probs_b",)), "no shared network": dict(zero=("ffn_down_shexp",))}),
    (SMALLTHINKER, WRONG | {"another base": dict(base=1e3)}),
    (other(SMALLTHINKER, "windows", window=4096), {"all layers rotated": dict(window=None), "sigmoid": dict(gating=2)}),
    (DEEPSEEK32, {k: v for k, v in WRONG.items() if k != "sigmoid"} | {"softmax": dict(gating=1), "another base": dict(base=1e3), "keys the other way round": dict(flipped=("attn_k_b",))}),
    (GLM_DSA, {k: v for k, v in WRONG.items() if k != "sigmoid"} | {"softmax": dict(gating=1), "another base": dict(base=1e3), "keys the other way round": dict(flipped=("attn_k_b",))}),
    (RWKV7, {f"{what} of other inputs": dict(flipped=(f"time_mix_{name}",)) for what, name in
             (("decays", "w2"), ("rates", "a2"), ("first values", "v2"), ("gates", "g2"), ("shares", "lerp_fused"), ("corrections", "k_k"), ("scales", "k_a"), ("what is past", "r_k"),
              ("norms", "ln"))} | {"no decays of tokens": dict(zero=("time_mix_w1",)), "shares in channels": dict(flipped=("channel_mix_lerp_k",)),
             "no channels": dict(zero=("channel_mix_value",))}),
    (other(RWKV7, "odd sizes", layers=3, embd=256, ff=151, vocab=397, rwkv=(128, 7, 5, 11, 13)), {"decays of other inputs": dict(flipped=("time_mix_w2",))}),
    (ARWKV7, {"decays of other inputs": dict(flipped=("time_mix_w2",)), "rates of other inputs": dict(flipped=("time_mix_a2",)), "no feed-forward part": dict(zero=("ffn_down",))}),
    (other(ARWKV7, "gates, odd sizes", layers=3, embd=192, ff=151, vocab=397, rwkv=(64, 7, 5, 11, 13)), {"gates of other inputs": dict(flipped=("time_mix_g2",))}),
    (RWKV6, {f"{what} of other inputs": dict(flipped=(f"time_mix_{name}",)) for what, name in
             (("decays", "decay_w2"), ("shares", "w2"), ("fixed shares", "lerp_fused"), ("shares of shares", "lerp_x"), ("bonus", "first"), ("norms", "ln"), ("gates", "gate"))}
     | {"no decays of tokens": dict(zero=("time_mix_decay_w1",)), "shares in channels": dict(flipped=("channel_mix_lerp_r",)), "halved after each layer": dict(rescaled=1)}),
    (other(RWKV6, "odd sizes", layers=3, embd=256, heads=2, kv_heads=2, ff=151, vocab=397, rwkv=(128, 7, 5), rescaled=0),
     {"decays of other inputs": dict(flipped=("time_mix_decay_w2",)), "halved after two layers": dict(rescaled=2)}),
    (RWKV6QWEN2, {"decays of other inputs": dict(flipped=("time_mix_decay_w2",)), "shares of other inputs": dict(flipped=("time_mix_w2",)), "gates of other inputs": dict(flipped=("time_mix_gate",)),
                  "no biases": dict(zero=("time_mix_key.bias",)), "no feed-forward part": dict(zero=("ffn_down",))}),
    (other(RWKV6QWEN2, "all heads, odd sizes", layers=3, embd=192, heads=3, kv_heads=3, ff=151, vocab=397, rwkv=(64, 7, 5)), {"gates of other inputs": dict(flipped=("time_mix_gate",))}),
    (HUNYUAN_VL, {"normed before they are rotated": dict(arch="qwen3", sections=())}),
    (PADDLEOCR, {"interleaved rotary": dict(arch="llama", sections=())}),
]
# In capitals a type by the `gguf` package, else a name that `alight quantize` knows.
SMALLER = [
    (other(LLAMA, "rope_freqs", factors=True), ["F16", "q4_0"]),
    (QWEN2, ["Q8_0", "q5_1"]),
    (other(QWEN3, "wide", embd=256, ff=256, heads=8, head_dim=32),
     ["BF16", "q4_k_m", "q2_k", "q3_k_m", "iq4_nl", "iq4_xs", "MXFP4", "TQ1_0", "TQ2_0", "IQ3_XXS", "IQ3_S", "IQ2_XXS", "IQ2_XS",
      "IQ2_S", "IQ1_S", "IQ1_M", "NVFP4"]),
    (ODD, ["q4_0"]),
    (GEMMA2, ["Q4_0", "q8_0"]),
    (GEMMA3, ["q6_k"]),
    # All experts, because rounding would choose others.
    (other(QWEN3MOE, "wide", embd=256, expert_ff=256, head_dim=64, used=7), ["Q8_0", "q4_k_m", "mxfp4_moe", "IQ2_XS", "NVFP4"]),
    (other(QWEN2MOE, "wide", embd=192, heads=6, head_dim=32, expert_ff=96, shared_ff=64, used=7), ["Q4_0", "F16"]),
    (other(LFM2, "wide", embd=256, ff=256, heads=8, head_dim=32), ["Q8_0", "q4_k_m"]),
    (other(GPT_OSS, "wide", embd=256, expert_ff=256, heads=8, head_dim=64, used=7), ["Q8_0", "MXFP4"]),
    # Rows of attn_k_b are too short for K-quants, as DeepSeek's are.
    (other(DEEPSEEK2, "wide", embd=256, ff=256, expert_ff=256, shared_ff=512, heads=4, latent=(256, 256, 96, 32, 64, False), used=7),
     ["Q8_0", "q4_k_m", "IQ2_XS"]),
    (other(DEEPSEEK2, "wide, as before 2025", embd=256, ff=256, expert_ff=256, heads=4, kv_heads=4, latent=(0, 256, 96, 32, 64, True),
           shared_ff=512, used=7), ["F16", "q4_k_m"]),
    (other(DEEPSEEK2, "all experts", used=7), ["q8_0", "Q8_0"]),
    (other(NEMOTRON_H_MOE, "wide, latent", embd=512, expert_ff=256, shared_ff=256, latent_experts=256, heads=8, head_dim=64, used=7,
           mamba=(8, 2, 64, 32, 4)), ["Q8_0", "q4_k_m"]),
]


class Trouble(Exception):
    pass


def alight(args, *command) -> str:
    done = process.run([common.alight(args.alight), *command], timeout=60)
    if done.returncode != 0:
        raise Trouble(done.stderr.strip() or f"exit status {done.returncode}")
    return done.stdout


def ours(args, model: Path, text: Path, batch: int, *more) -> tuple[list[int], np.ndarray]:
    """The tokens of the text, and the log-probabilities `[positions, vocabulary]`; `more` are further options."""
    saved = model.with_suffix(".logits")
    how = ("--decode",) if batch == 1 else ("-b", batch)
    alight(args, "perplexity", model, text, "-c", CONTEXT, "--chunks", 1, *how, "-t", args.threads, "--save-logits", saved,
        "--force", *more)
    data = saved.read_bytes()
    length, vocab, chunks = np.frombuffer(data, "<u4", 3, 8)
    assert data[:8] == b"_logits_" and (length, chunks) == (CONTEXT, 1)
    tokens = np.frombuffer(data, "<u4", CONTEXT, 20)
    rows = np.frombuffer(data, np.uint8, offset=20 + 4 * CONTEXT).reshape(LAST + 1 - FIRST, -1)[:: args.step]
    scale, least = (rows[:, i : i + 4].copy().view("<f4") for i in (0, 4))
    return tokens.tolist(), scale * rows[:, 8:].copy().view("<u2")[:, :vocab] + least


def peer(m: Tiny, path: Path, exact: bool, adapter: Path | None = None) -> Llama:
    llama = Llama(path, exact, adapter)
    # What it is made to choose, so that it lists the others: it does only after whole characters.
    llama.plain = tiny_models.plain(m)
    return llama


def theirs(args, llama: Llama, vocab: int, tokens: list[int], candidates: int) -> np.ndarray:
    """The same by llama.cpp for the best candidates, not a number for others."""
    positions = range(FIRST, LAST + 1, args.step)
    out = np.full((len(positions), vocab), np.nan)
    for row, position in zip(out, positions):
        for found in llama.next(tokens[: position + 1], n_probs=candidates):
            row[found["id"]] = found["logprob"]
    return out


def apart(exact: np.ndarray, found: np.ndarray, left_out: float = 0.0) -> tuple[float, float]:
    """The largest difference, without that share of the positions that are furthest off, and the root of the mean square."""
    likely = exact >= np.nanmax(exact, axis=1, keepdims=True) - RANGE
    # Not a number is as far off as can be.
    off = np.where(likely, np.abs(exact - found), 0.0)
    off = np.where(np.isnan(off), np.inf, off)
    by_position = np.sort(off.max(axis=1))[::-1]
    return float(by_position[int(left_out * len(by_position))]), float(np.sqrt((off[likely] ** 2).mean()))


def near_ties(m: Tiny) -> float:
    """The share of positions that are left out where experts are chosen: where two are nearly as good, the rounding of keys
    and values decides between them, now and then the other way."""
    return 0.1 if m.used < m.experts else 0.0


class Report(checks.Checks):
    """Of numbers with limits."""

    def within(self, model: str, what: str, found: float, limit: float, above: bool = False) -> None:
        good = found > limit if above else found <= limit
        self.add(good, f"{model}: {what}: {found:.5f} (wanted {'>' if above else '≤'} {limit:.5f})",
                 model=model, what=what, found=found, limit=limit, above=above)


def compare(args, report: Report, m: Tiny, controls: dict, folder: Path, text: Path, exactly: Callable) -> Path:
    """The F32 file, and what may not pass for it, beside `exactly(path, tokens)`; returns the file."""
    path = tiny_models.write(m, folder / "model.gguf")
    noted = process.run([common.alight(args.alight), "inspect", path], timeout=60).stderr
    report.add("is not read" not in noted, f"{m.name}: its metadata is read: {noted.strip()}")
    tokens, batch = ours(args, path, text, CONTEXT)
    _, single = ours(args, path, text, 1)
    exact = exactly(path, tokens)
    left_out = near_ties(m)
    report.within(m.name, "in a batch", apart(exact, batch, left_out)[0], TOLERANCE)
    report.within(m.name, "one by one", apart(exact, single, left_out)[0], TOLERANCE)
    for what, change in controls.items():
        wrong = tiny_models.write(replace(m, **change), folder / "control.gguf")
        same, found = ours(args, wrong, text, CONTEXT)
        assert same == tokens
        report.within(m.name, f"with a mistake: {what}", apart(exact, found, left_out)[0], CONTROL, above=True)
    return path


def plain(args, report: Report, m: Tiny, controls: dict, folder: Path, text: Path) -> None:
    """The F32 file beside llama.cpp, and a continuation."""
    prompt, ends, answer = tiny_models.text(30, m.seed + 1), tiny_models.ends(m), {}

    def exactly(path, tokens) -> np.ndarray:
        with peer(m, path, exact=True) as llama:
            told = llama.tokens(prompt, GREEDY)
            answer.update(tokens=[greedy.END if t in ends else t for t in told], top=llama.along(prompt, told))
            return theirs(args, llama, m.vocab, tokens, CANDIDATES)

    path = compare(args, report, m, controls, folder, text, exactly)
    said = json.loads(alight(args, *peers.alight_run(args, path, prompt, "--json", tokens=GREEDY)[1:]))
    said = said["tokens"] + ([greedy.END] if said["finish"] == "stop" else [])
    verdict, why = greedy.compare(said, answer, ends, 25 * TOLERANCE if near_ties(m) else TOLERANCE)
    report.within(m.name, f"greedy {why}" if why else "greedy", float(verdict == "wrong"), 0.0)


def smaller(args, report: Report, m: Tiny, kind: str, folder: Path, text: Path) -> None:
    """A file of another type, and its packed form."""
    name = f"{m.name}, {kind}"
    path, exact_path, packed = (folder / f"{n}.gguf" for n in ("small", "exact", "packed"))
    if kind.isupper():
        tiny_models.write(replace(m, kind=kind), path)
    else:
        full = tiny_models.write(m, folder / "full.gguf")
        alight(args, "quantize", full, "-o", path, "--type", kind, "--force", "-t", args.threads)
    gguf_files.dequantise(path, exact_path)
    alight(args, "pack", path, "-o", packed, "--force")
    found = {(what, batch): ours(args, file, text, batch)
             for what, file in (("GGUF", path), ("packed", packed)) for batch in (1, CONTEXT)}
    tokens = found["GGUF", 1][0]
    rows = []
    for file, exact in ((exact_path, True), (path, False)):
        with peer(m, file, exact) as llama:
            rows.append(theirs(args, llama, m.vocab, tokens, CANDIDATES if exact else m.vocab))
    room = ROOM_OF_EXPERTS if m.experts else ROOM
    exact, usual = rows[0], apart(*rows)[1]
    for (what, batch), (same, logits) in found.items():
        assert same == tokens
        most, mean = apart(exact, logits)
        if batch == 1:
            report.within(name, f"{what}, one by one", most, ONE_BY_ONE)
        else:
            report.within(name, f"{what}, in a batch, beside llama.cpp's {usual:.5f}", mean, room * usual + TOLERANCE / 4)


def add_arguments(parser) -> None:
    parser.add_argument("names", nargs="*", help="architectures (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the weights and the texts")
    parser.add_argument("--step", type=int, default=1, help="compare every N-th position")
    parser.add_argument("--sample", action="store_true",
                        help="the first network of each architecture with one mistake, each smaller type once, every 12th position")
    parser.add_argument("-q", "--quiet", action="store_true", help="only what fails, and the sum")
    common.add_arguments(parser, threads=1)


def sample() -> tuple[list, list]:
    """Of `CASES` and `SMALLER`, as few as see every architecture and every type."""
    first: dict[str, tuple] = {}
    for m, controls in CASES:
        first.setdefault(m.arch, (m, dict(list(controls.items())[:1])))
    seen: set[str] = set()
    return list(first.values()), [(m, [kind for kind in kinds if not (kind.lower() in seen or seen.add(kind.lower()))]) for m, kinds in SMALLER]


def run(args) -> int:
    start, report = time.monotonic(), Report(args.quiet)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        text = folder / "text.txt"
        text.write_text(tiny_models.text(200, args.seed))
        cases, types = sample() if args.sample else (CASES, SMALLER)
        args.step = 12 if args.sample else args.step
        jobs = [(plain, m, controls) for m, controls in cases]
        jobs += [(smaller, m, kind) for m, kinds in types for kind in kinds]
        for job, m, more in jobs:
            if args.names and m.arch not in args.names:
                continue
            try:
                job(args, report, replace(m, seed=args.seed), more, folder, text)
            except Trouble as trouble:
                report.add(False, f"{m.name}: {trouble}")
    controls = [row for row in report.rows if row.get("above")]
    same = [row["found"] for row in report.rows if row.get("what") in ("in a batch", "one by one")]
    if not common.as_json(args, report.rows) and same and controls:
        print(f"architectures: F32 within {max(same):.4f} of llama.cpp, {len(controls)} mistakes at least "
              f"{min(row['found'] for row in controls):.2f} away")
        print(f"architectures: {report.passed} passed, {report.failed} failed, {time.monotonic() - start:.1f} s")
    return report.status()
