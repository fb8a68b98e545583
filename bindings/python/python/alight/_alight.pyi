"""The extension module; the package `alight` is what people import."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypedDict, final, type_check_only

__all__ = [
    "ALIGNMENT",
    "Block",
    "Catalog",
    "Decoder",
    "FileChangedError",
    "FormatError",
    "Residency",
    "Staging",
    "Tensor",
    "Tokenizer",
    "WEIGHT_TYPES",
    "__version__",
    "check_new_file",
    "config",
    "cuda_accounts",
    "cuda_errors",
    "cuda_probe",
    "ffi_interface",
    "ffi_targets",
    "how_to_copy",
    "open",
    "reusable",
    "share_memory",
    "unlink_memory",
    "write_new_file",
]

__version__: str
ALIGNMENT: int
"""Addresses at a multiple of this are used by XLA in place; of others it makes a copy."""

WEIGHT_TYPES: dict[str, tuple[int, int, list[tuple[str, int]]]]
"""The types of GGUF that have kernels: for each its id in files, the weights of a block, and the scales at fixed places of a
block: ("f16", "f16-nibbles", "e4m3" or "exponent", byte)."""

class FormatError(ValueError):
    """A file is not what it should be: damaged, of another format, or of another model."""

class FileChangedError(OSError):
    """A file was cut short, or could not be read, after it had been opened: what was read from it is
    worthless."""

def check_new_file(path: str | os.PathLike[str], *, force: bool) -> None:
    """Refuses a file that may not be written, before anything is computed for it."""

def write_new_file(path: str | os.PathLike[str], bytes: bytes, *, force: bool) -> None:
    """Writes a file. It has its name when it is complete and on the disk; a file that was there before stays until then,
    and with `force` is replaced."""

def open(path: str | os.PathLike[str]) -> Catalog:
    """Opens the model that `path` is, holds or belongs to."""

def ffi_interface() -> tuple[list[tuple[str, int, list[tuple[str, int]]]], list[tuple[str, int]]]:
    """XLA's interface as this library knows it, to be compared with an installed header: for each struct its name, its
    size, and the names and offsets of its fields; and the constants with their numbers."""

def ffi_targets() -> list[tuple[str, str, dict[str, Any], tuple[str, Any] | None]]:
    """The custom calls of this library, for `jax.ffi`: for each its name, its platform, {stage: capsule}, and
    (name, {"type_id": capsule, "type_info": capsule}) of the type of its state if it has one."""

@final
class Staging:
    """Memory that ranges of files are read into, page-locked where there is a driver of CUDA's. It is never written while
    anybody is shown its bytes, by the buffer protocol, read-only."""

    def __new__(cls, nbytes: int) -> Staging:
        """Room for any range of `nbytes` bytes."""
    @property
    def unlocked(self) -> str | None:
        """Why it is not page-locked; `None` if it is."""
    def read(self, catalog: Catalog, file: int, start: int, stop: int, direct: bool) -> int:
        """Reads bytes `start` to `stop` of a file of the catalog, around the page cache if `direct`; returns where they
        begin. Raises `BufferError` while somebody is shown bytes."""
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, view: memoryview, /) -> None: ...

def how_to_copy(catalog: Catalog, file: int, weights: int) -> tuple[str, str]:
    """How a file is best read into memory of our own now: "mmap" if it is cached, "direct" or "read"; and why."""

def cuda_probe(ordinals: list[int], folders: list[str], limit: float) -> str | None:
    """Why the collective cannot be used among the GPUs with these numbers of CUDA's, found out by trying it; `None` if it
    can. `folders` are where the run-time compiler may be; a rank waits `limit` seconds for another."""

def cuda_accounts() -> list[tuple[int, int, int]]:
    """For each communicator that lives: launches by the host, launches that were captured into graphs, both of all
    ranks, and the calls that the GPU of its first rank has ended, replays included."""

def cuda_errors() -> list[str]:
    """What went wrong in calls among GPUs so far: one for each communicator that failed. Waits for nothing."""

def config(model: str | os.PathLike[str] | Catalog) -> Config:
    """The hyper-parameters of a model: its path, or its open catalog.

    What the engine of `alight run` refuses raises here, too: `FormatError` with the file, the key or the
    tensor, what was found and what was expected. `NotImplementedError`: the engine runs the network, but its
    layers differ by more than their sliding windows, which this dict does not tell.
    """

@type_check_only
class Rope(TypedDict):
    """A rotary embedding: element pair i of a head turns by position · rope_frequencies[i]."""

    rope_dims: int
    """Rotated elements at the start of a head."""
    rope_frequencies: list[float]
    """Radians per position, [rope_dims / 2]; scaling and the factors of a `rope_freqs` tensor included."""
    rope_magnitude: float
    """What cosines and sines are multiplied by."""

@type_check_only
class Local(Rope):
    """What the layers with a sliding window do differently."""

    window: int
    """A token sees itself and the window − 1 positions before it."""
    layers: list[bool]
    """Which layers they are, [layers]."""

@type_check_only
class Experts(TypedDict):
    """A mixture of experts, the same in all layers: a router chooses `used` of `count` experts for each token."""

    gating: Literal["softmax", "softmax_of_chosen"]
    """What makes shares of the router's logits: a softmax over all experts, or one over the chosen."""
    count: int
    used: int
    feed_forward: int
    """Width of an expert."""
    normalised: bool
    """Whether the shares of the chosen experts are divided by their sum."""
    scale: float
    """Factor on the shares."""

@type_check_only
class Config(Rope):
    """The shape of a network and what its blocks do."""

    architecture: str
    """As the file names it. The JAX engine refuses some that this describes."""
    layers: int
    """Transformer blocks."""
    embedding: int
    """Width of the residual stream."""
    feed_forward: int
    """Width of the feed-forward layer; 0 where `experts` are in place of it."""
    experts: Experts | None
    """The mixture of experts of every layer, if there is one."""
    heads: int
    """Query heads."""
    kv_heads: int
    """Key/value heads; divides `heads`."""
    key_dim: int
    """Length of a query or key."""
    value_dim: int
    """Length of a value."""
    vocab: int
    """Tokens in the vocabulary."""
    context: int
    """Positions that the model was trained for."""
    rms_eps: float
    """Added to the mean square in every RMSNorm."""
    rope_pairing: Literal["interleaved", "neox"]
    """Which elements of a head rotate together: (2i, 2i + 1), or (i, i + rope_dims / 2)."""
    local: Local | None
    """Layers with a sliding window, if there are any."""
    rotates: bool
    """Whether queries and keys are rotated at all."""
    embedding_scale: float
    """Factor on the embedding row."""
    residual_scale: float
    """Factor on the outputs of attention and feed-forward before they are added."""
    logit_scale: float
    """Factor on the logits, before their soft cap."""
    attention_scale: float
    """Factor on q·k."""
    attention_softcap: float | None
    """Soft cap of attention scores."""
    logit_softcap: float | None
    """Soft cap of the logits."""
    sinks: str | None
    """What the file calls the scores of query heads that are of no position, if they have them."""
    gate: Literal["silu", "gelu_tanh", "clamped_silu"]
    """The activation of the feed-forward gate; the last one is gpt-oss's."""
    qk_norm: bool
    """Whether queries and keys are normed per head."""
    feed_forward_norm: Literal["ffn_norm", "post_attention_norm"]
    """What the norm before the feed-forward part is called in the file."""
    post_norms: bool
    """Whether the outputs of attention and feed-forward are normed before they are added."""

def share_memory(name: str, process: int, create: bool) -> None:
    """Shares memory with other processes of this host, once, under a name that begins with a slash and that nobody can
    guess: makes it, or opens what another process has made."""

def unlink_memory(name: str) -> None:
    """Takes the name of shared memory away, if there is one; a process that has opened it keeps the memory."""

def reusable(cached: list[int], prompt: list[int]) -> int:
    """How many tokens at the beginning of `prompt` a cache that holds the positions of `cached` has already; the prompt's
    last token never counts."""

@final
class Catalog:
    """A model file, or several that are one model, as a catalog.

    The files are mapped, and nothing but their headers has been read. The maps live as long as this
    object, or anything that shows their bytes.
    """

    @property
    def format(self) -> Literal["gguf", "safetensors"]: ...
    @property
    def files(self) -> list[Path]:
        """The files that hold the tensors."""
    @property
    def metadata(self) -> MappingProxyType[str, Any]:
        """Keys and values of the header; GGUF's arrays are lists. Read when first asked for."""
    @property
    def tensors(self) -> MappingProxyType[str, Tensor]:
        """The tensors by name, file by file in the order of their data."""
    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
    def residency(self) -> Residency:
        """How much of all files is in the page cache now."""
    def check(self) -> None:
        """Raises `FileChangedError` if a file has been cut short since, or could not be read: then what
        was read from it is worthless. Arrays over the map show zeros where bytes are gone."""
    def _whole(self, file: int) -> Block: ...
    def _prefetch(self, file: int, weights: int) -> tuple[int, str]: ...
    def _fetch(self, file: int, start: int, stop: int, read: bool) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, name: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, name: str, /) -> Tensor: ...

@final
class Tensor:
    """A tensor: what it is, where it is in its file, and its bytes, in place and read-only by the buffer
    protocol."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the elements, outermost first."""
    @property
    def type(self) -> str:
        """The type, as the format calls it: "Q4_K", "BF16"."""
    @property
    def dtype(self) -> str | None:
        """The element type, as NumPy calls it; `None` for blocks and tiles."""
    @property
    def packed(self) -> bool:
        """Whether the bytes are in tiles of 16 rows, as `alight pack` writes them."""
    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the bytes as they are stored: as `shape` for plain elements, else in bytes:
        `[…, rows, bytes of a row]`, and `[…, tiles, bytes of a tile]` where packed."""
    @property
    def grain(self) -> int:
        """The last dimension of `stored_shape` can be cut at multiples of this."""
    @property
    def convertible(self) -> bool:
        """Whether it can be had as floats."""
    @property
    def offset(self) -> int:
        """Where its bytes begin in the file."""
    @property
    def aligned(self) -> bool:
        """Whether its address in the map is one that XLA uses in place: a multiple of 64. Of others,
        arrays are copies; `alight convert` writes files in which every tensor is aligned."""
    @property
    def nbytes(self) -> int: ...
    @property
    def file(self) -> Path:
        """The file that holds it."""
    @property
    def file_index(self) -> int:
        """Its place among the files of the catalog."""
    def residency(self) -> Residency:
        """How much of it is in the page cache now."""
    def read(
        self,
        ranges: Sequence[tuple[int, int]] | None = None,
        dtype: str | None = None,
        align: int = 1,
    ) -> Block:
        """Its bytes, or those of a part: `ranges` has a (start, stop) for each dimension of
        `stored_shape`. They are shown in place if they are contiguous in the file, from a
        multiple of `align` on; else they are copied to such an address.

        With `dtype` ("bfloat16", "float16", "float32") the elements are converted, and `ranges` are of
        `shape`.
        """
    def extent(self, ranges: Sequence[tuple[int, int]] | None = None) -> tuple[int, int, bool]:
        """Where a part of the stored array lies in the file: (start, stop, whether nothing else lies in
        between)."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Block:
    """Bytes of a tensor, or of a part of it: read-only, contiguous, in the order of the elements.

    They are shown by the buffer protocol as plain bytes. What shows them keeps this object alive, and
    this object keeps the map of the file.
    """

    @property
    def shape(self) -> list[int]:
        """Length of each dimension of what was asked for, outermost first."""
    @property
    def mapped(self) -> bool:
        """Whether these are the bytes of the map in place, rather than a copy."""
    @property
    def address(self) -> int:
        """Where the bytes are in memory."""
    @property
    def nbytes(self) -> int: ...
    def check(self) -> None:
        """Raises `FileChangedError` if the file has been cut short, or could not be read."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Residency:
    """How much of a file, or of a part of it, is in the page cache."""

    @property
    def nbytes(self) -> int:
        """Bytes of it."""
    @property
    def cached(self) -> int:
        """Bytes of it that are in the page cache, by whole pages."""
    @property
    def source(self) -> Literal["cachestat", "mincore", "sampled"]:
        """How that is known."""
    @property
    def share(self) -> float:
        """The cached part, 0 to 1."""

@type_check_only
class Message(TypedDict):
    """One message of a conversation."""

    role: str
    """Who speaks: "system", "user" or "assistant" in most templates."""
    content: str

@type_check_only
class Call(TypedDict):
    """The call of a tool."""

    name: str
    arguments: dict[str, Any]

@type_check_only
class Answer(TypedDict):
    """What a model wrote, without the marks between its parts."""

    thinking: str
    answer: str
    calls: list[Call]

@final
class Tokenizer:
    """A model's tokenizer and chat template."""

    def __new__(cls, model: str | os.PathLike[str] | Catalog) -> Tokenizer:
        """The tokenizer of a model: its path, or its open catalog."""
    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
    @property
    def bos(self) -> int | None:
        """Beginning of sequence."""
    @property
    def eos(self) -> int | None:
        """End of sequence."""
    @property
    def padding(self) -> int | None:
        """What pads batches."""
    @property
    def unknown(self) -> int | None:
        """What stands for text that has no token."""
    @property
    def ends(self) -> list[int]:
        """The tokens with which an answer ends, ascending."""
    @property
    def adds_bos(self) -> bool:
        """Whether the file asks for a beginning of sequence before every text."""
    @property
    def adds_eos(self) -> bool:
        """Whether the file asks for an end of sequence after every text."""
    @property
    def has_chat_template(self) -> bool:
        """Whether the file has a chat template that compiles."""
    @property
    def chat_template_error(self) -> str | None:
        """Why the file's chat template does not compile, if it has one that does not."""
    def encode(self, text: str, *, add_bos: bool | None = None, parse_special: bool = False) -> list[int]:
        """The tokens of a text. `add_bos`: `None` has beginning and end of sequence as the file says,
        `False` neither, `True` the beginning in any case. With `parse_special`, spellings of control
        tokens become those tokens."""
    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens together, without control tokens; what is not UTF-8 becomes U+FFFD."""
    def token(self, id: int) -> bytes:
        """The text of a token as the file has it (`Ġthe`, `▁the`, `<0x0A>`)."""
    def find(self, text: bytes) -> int | None:
        """The id of exactly this spelling in the file."""
    def stream(self) -> Decoder:
        """A decoder for tokens that come one by one."""
    def prompt(self, text: str, *, parse_special: bool = False) -> list[int]:
        """The tokens of a prompt without a template, those that `alight run --raw` feeds."""
    def chat(
        self,
        messages: Sequence[Message] | Sequence[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        parse_special: bool = False,
    ) -> list[int]:
        """The tokens of a conversation by the file's template, those that `alight run` feeds: spellings
        of control tokens in messages are text unless `parse_special` is set.

        `tools` are what the model may call, as JSON schemas. Messages may then have `tool_calls`, without `content`, and
        whatever else the template looks for."""
    def parse(self, ids: Sequence[int], *, prompt: Sequence[int] = ...) -> Answer:
        """What a model wrote, taken apart. `prompt` are the tokens that were answered: a template may have opened the
        thinking already."""
    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """A conversation as the text that the file's template makes of it."""
    def __len__(self) -> int: ...

@final
class Decoder:
    """Tokens into text that can be shown at once: a character that is not complete waits for the next
    token."""

    def push(self, id: int) -> str:
        """The text that is complete with this token. Control tokens have none."""
    def finish(self) -> str:
        """The rest: what is still incomplete becomes U+FFFD."""
