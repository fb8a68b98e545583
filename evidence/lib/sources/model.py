"""A model in memory: sizes, weights under their GGUF names, a vocabulary. Out of a GGUF file, or random and small."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from evidence.lib import networks, vocabularies
from evidence.lib.lazy import lazily
from evidence.lib.vocabularies import byte_alphabet

np = lazily("numpy")




@dataclass
class Vocab:
    """Tokens as GGUF has them. `kind`: "bpe" (byte level) or "spm" (SentencePiece)."""

    kind: str
    tokens: list[str]
    types: list[int]
    scores: list[float] = field(default_factory=list)
    merges: list[str] = field(default_factory=list)
    special: dict[str, int] = field(default_factory=dict)  # bos, eos, unk, pad
    chat_template: str | None = None
    add_bos: bool = False
    add_space_prefix: bool = False
    pre: str = "default"


@dataclass
class Model:
    name: str
    arch: str
    n_vocab: int
    n_embd: int
    n_ff: int
    n_head: int
    n_kv: int
    head_dim: int
    n_layer: int
    eps: float
    rope_base: float
    context: int
    vocab: Vocab
    tensors: dict[str, np.ndarray]  # f32: [out, in] for matrices, [n] for norms
    window: int | None = None
    n_mult: int = 32

    @property
    def tied(self) -> bool:
        return "output.weight" not in self.tensors

    def untied(self) -> Model:
        """With the output matrix that formats without tying have: a copy of the embedding."""
        if not self.tied:
            return self
        return replace(self, tensors={**self.tensors, "output.weight": self.tensors["token_embd.weight"]})


# --- numbers -------------------------------------------------------------------------------------


def bf16(x: np.ndarray) -> np.ndarray:
    """Bits of the nearest bfloat16, ties to even, of finite f32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) >> 16).astype(np.uint16)


def cast(x: np.ndarray, dtype: str) -> np.ndarray:
    """f32 as the file has it: F32, F16, or BF16 as its bits."""
    if dtype == "F32":
        return np.ascontiguousarray(x, np.float32)
    return np.ascontiguousarray(x, np.float32).astype(np.float16) if dtype == "F16" else bf16(x)


def widen(x: np.ndarray) -> np.ndarray:
    """What `cast` left of a number, as f32."""
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32)


# --- out of GGUF ---------------------------------------------------------------------------------


def from_gguf(path) -> Model:
    """The model of a GGUF file (llama, gemma3), dequantised by the `gguf` package."""
    import gguf

    reader = gguf.GGUFReader(path)

    def get(key, default=None):
        found = reader.fields.get(key)
        return default if found is None else found.contents()

    arch = get("general.architecture")
    sizes = {key: get(f"{arch}.{key}") for key in ("embedding_length", "block_count", "feed_forward_length", "context_length")}
    heads = get(f"{arch}.attention.head_count")
    special = {short: get(f"tokenizer.ggml.{long}_token_id") for short, long in
               (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))}
    vocab = Vocab(
        kind="bpe" if get("tokenizer.ggml.model") == "gpt2" else "spm",
        tokens=get("tokenizer.ggml.tokens"), types=get("tokenizer.ggml.token_type"),
        scores=get("tokenizer.ggml.scores", []), merges=get("tokenizer.ggml.merges", []),
        special={k: v for k, v in special.items() if v is not None}, chat_template=get("tokenizer.chat_template"),
        add_bos=get("tokenizer.ggml.add_bos_token", False), add_space_prefix=get("tokenizer.ggml.add_space_prefix", False),
        pre=get("tokenizer.ggml.pre", "default"))
    tensors = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
    return Model(
        name=path.stem.split(".")[0], arch=arch, n_vocab=len(vocab.tokens), n_embd=sizes["embedding_length"],
        n_ff=sizes["feed_forward_length"], n_head=heads, n_kv=get(f"{arch}.attention.head_count_kv"),
        head_dim=get(f"{arch}.attention.key_length", sizes["embedding_length"] // heads), n_layer=sizes["block_count"],
        eps=float(np.float32(get(f"{arch}.attention.layer_norm_rms_epsilon"))), rope_base=get(f"{arch}.rope.freq_base"),
        context=sizes["context_length"], vocab=vocab, tensors=tensors, window=get(f"{arch}.attention.sliding_window"))


# --- random and small ----------------------------------------------------------------------------


def llama_shapes(m: Model) -> dict[str, tuple]:
    """Every tensor of a llama, in the order in which it is used."""
    return networks.shapes("llama", layers=m.n_layer, embd=m.n_embd, ff=m.n_ff, heads=m.n_head, kv_heads=m.n_kv, head_dim=m.head_dim,
                           vocab=m.n_vocab, tied=False)


def n_ff_of(n_embd: int, n_mult: int) -> int:
    """What the legacy header lets a reader compute."""
    return (2 * (4 * n_embd) // 3 + n_mult - 1) // n_mult * n_mult


def tiny(seed: int = 1, n_kv: int = 8, tied: bool = False, vocab: Vocab | None = None, n_embd: int = 256,
         n_head: int = 8, n_layer: int = 2, n_mult: int = 256, n_vocab: int = 0) -> Model:
    """A llama whose dimensions divide by 8 parts of whole blocks of 32."""
    vocab = vocab or spm_vocab(768)
    m = Model(name="tiny", arch="llama", n_vocab=n_vocab or len(vocab.tokens), n_embd=n_embd, n_ff=n_ff_of(n_embd, n_mult), n_head=n_head,
              n_kv=n_kv, head_dim=n_embd // n_head, n_layer=n_layer, eps=1e-5, rope_base=10000.0, context=2048, vocab=vocab,
              tensors={}, n_mult=n_mult)
    rng = np.random.default_rng(seed)
    for name, shape in llama_shapes(m).items():
        if len(shape) == 1:
            m.tensors[name] = (1 + 0.1 * rng.standard_normal(shape)).astype(np.float32)
        else:
            m.tensors[name] = (rng.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)
    if tied:
        del m.tensors["output.weight"]
    return m


WORDS = "the of and to in is it that was for on are as with his they at be this from have or by one had not but what all were"


def spm_vocab(count: int) -> Vocab:
    """As LLaMA's."""
    tokens, scores, types = vocabularies.spm_vocabulary(count, np.random.default_rng(640))
    return Vocab("spm", tokens, [int(kind) for kind in types], scores, special={"unk": 0, "bos": 1, "eos": 2}, add_bos=True,
                 add_space_prefix=True)


def bpe_vocab() -> Vocab:
    """A small vocabulary as SmolLM2's: special tokens first, the bytes, then what the merges make."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"]
    types = [3] * 4
    tokens += byte_alphabet()
    merges = []
    for word in WORDS.split():
        left = "\u0120"
        for letter in word:
            if left + letter not in tokens:
                merges.append(f"{left} {letter}")
                tokens.append(left + letter)
            left += letter
    count = -(-len(tokens) // 64) * 64
    tokens += [f"<unused{i}>" for i in range(count - len(tokens))]
    types = [3] * 4 + [1] * (count - 4)
    return Vocab("bpe", tokens, types, merges=merges, special={"bos": 1, "eos": 2, "unk": 0, "pad": 2},
                 chat_template="{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
                 "+ '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
                 pre="smollm")


def ranks_vocab(count: int = 128000) -> Vocab:
    """As Llama 3's: tokens are bytes, a token's number is its rank; 256 special tokens, which the file does not have,
    follow. Single bytes first, in GPT-2's order; then each token is two earlier ones, put together."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    tokens = dict.fromkeys(bytes([b]) for b in shown + [b for b in range(256) if b not in shown])
    for word in WORDS.split():
        for n in range(2, len(word) + 1):
            tokens |= {(" " + word)[:n].encode(): None, word[:n].encode(): None}
    rng, listed = np.random.default_rng(128), list(tokens)
    while len(listed) < count:
        for a, b in rng.integers(0, [[len(listed), 340]], (4096, 2)):
            token = listed[a] + listed[b]
            if len(token) < 24 and token not in tokens:
                tokens[token] = None
                listed.append(token)
    return Vocab("ranks", listed[:count], [1] * count, special={"bos": count})
