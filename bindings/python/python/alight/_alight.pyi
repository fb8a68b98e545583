"""The extension module; the package `alight` is what people import."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack, final, overload, type_check_only

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "ALIGNMENT",
    "AlightError",
    "Array",
    "Block",
    "Catalog",
    "ClosedError",
    "Completion",
    "ComputeError",
    "ContextFullError",
    "Decoder",
    "ExpertStore",
    "FileChangedError",
    "FormatError",
    "GPU_WEIGHT_TYPES",
    "HubError",
    "Model",
    "NotEnoughMemoryError",
    "OptionError",
    "PromptError",
    "Residency",
    "Staging",
    "Stream",
    "Tensor",
    "Tokenizer",
    "WEIGHT_TYPES",
    "__version__",
    "check_new_file",
    "config",
    "cuda_accounts",
    "cuda_close",
    "cuda_errors",
    "cuda_has_fabric",
    "cuda_offer",
    "cuda_open",
    "cuda_probe",
    "cuda_problem",
    "cuda_trial",
    "ffi_interface",
    "ffi_targets",
    "how_to_copy",
    "open",
    "pull",
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

GPU_WEIGHT_TYPES: list[str]
"""Those of blocks that CUDA's GPUs multiply with as they are."""

class AlightError(Exception):
    """What all errors of this package are. A file that cannot be opened is Python's own error for that (`FileNotFoundError` and
    so on), and so is an argument of a wrong type."""

class FormatError(AlightError, ValueError):
    """A file is not what it should be: damaged, of another format, or of another model."""

class FileChangedError(AlightError, OSError):
    """A file was cut short, or could not be read, after it had been opened: what was read from it is
    worthless."""

class OptionError(AlightError, ValueError):
    """An option has a value that makes no sense, or that this model or this machine does not have."""

class PromptError(AlightError, ValueError):
    """A prompt has no tokens: its text is empty, or the model's chat template does not take the conversation."""

class ContextFullError(AlightError, ValueError):
    """A prompt does not fit into the context. Nothing was computed."""

class NotEnoughMemoryError(AlightError, MemoryError):
    """A model, or what is computed with it, does not fit into the memory that can be had."""

class ComputeError(AlightError, RuntimeError):
    """A step could not be computed, or its numbers are none."""

class ClosedError(AlightError, ValueError):
    """The model has been closed."""

class HubError(AlightError, OSError):
    """A model of the hub is not in the cache, and could not be fetched or may not be."""

def pull(
    name: str,
    *,
    revision: str | None = None,
    offline: bool = False,
    pack: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> Path:
    """Fetches a model of the hub as `alight pull` does, and returns the path of its file, or of the first of several.

    `name` is `USER/REPO`, `USER/REPO:Q4_K_M`, `USER/REPO:FILE.gguf` or an address of the hub. What is in the cache of Hugging Face's
    tools is not fetched again. `revision`: a branch, a tag or a commit. `offline`: nothing is fetched. `pack`: the model is packed when it
    has been fetched and checked, and the packed file is kept alone, as by `alight pull --pack`. `progress` is called with
    the bytes that are there and the bytes in all, several times per second. What it raises ends the pull, as Ctrl-C does; what was
    received is kept, and the next pull continues."""

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
    """Memory that ranges of files are read into, page-locked if it is for a GPU of CUDA's. It is never written while
    anybody is shown its bytes, by the buffer protocol, read-only."""

    def __new__(cls, nbytes: int, gpu: int | None = None) -> Staging:
        """Room for any range of `nbytes` bytes. `gpu` is CUDA's number of one that it is for, in whose context the driver locks pages:
        every GPU may copy from it then."""
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

def cuda_problem(ordinals: list[int], folders: list[str]) -> str | None:
    """Why kernels cannot be compiled for the GPUs with these numbers of CUDA's; `None` if they can. `folders` are where the
    run-time compiler may be."""

def cuda_has_fabric(ordinals: list[int]) -> bool:
    """Whether memory of all these GPUs can be opened by processes of other hosts."""

def cuda_offer(ordinals: list[int], bytes: int, fabric: bool) -> list[bytes]:
    """Makes arenas on GPUs of this process, and gives what other processes open each by."""

def cuda_open(process: int, offers: list[tuple[int, int, bytes]]) -> None:
    """Opens arenas of other processes: JAX's number of the GPU, the process, the handle; our own in the order in which they were made."""

def cuda_trial(devices: list[int], folders: list[str], limit: float) -> str | None:
    """Why the collective does not work among GPUs of several processes, which all try it at the same time."""

def cuda_close(free: bool) -> None:
    """Closes the arenas of other processes; or frees ours, once all have closed them."""

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

@final
class ExpertStore:
    """Experts of a model that memory cannot hold, for the JAX engine on CPU devices: they are read around the page cache when they
    are chosen. Programs tell it by its number, and it is there as long as this object."""

    def __new__(cls, layers: list[tuple[Tensor, Tensor, Tensor]], ranks: list[tuple[int, int, bool]], memory: int) -> ExpertStore:
        """For layers with a stack `[experts, rows, columns]` of gates, of ups and of downs each, all of one file; of rank `i` for its
        experts `(first, count, whether it is of this process)`. All slots together take `memory` bytes at most."""
    @property
    def number(self) -> int:
        """What programs call it."""
    @property
    def counts(self) -> tuple[int, int, int, int, int, int]:
        """Six sums over the ranks of this process: experts, slots, experts that were chosen, chosen experts that were in a slot (hits),
        bytes that were read, and reads."""

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
        """Whether the bytes are in tiles of 16 rows, or in planes, as `alight pack` writes them."""
    @property
    def planes(self) -> bool:
        """Whether the bytes are in planes: the high bits in tiles, apart from the low ones."""
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
    def stride(self) -> int | None:
        """Bytes from each expert to the next in the file, where those of other tensors lie in between (`alight pack` writes
        them so). None: the bytes are contiguous."""
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
    def numpy(self, dtype: Literal["float32", "float16", "bfloat16"] | None = None) -> np.ndarray[Any, Any]:
        """As a NumPy array: plain elements in place, read-only; blocks as float32. `dtype` converts. (`numpy.asarray` shows the
        stored bytes, by the buffer protocol.)"""
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]: ...
    def __jax_array__(self) -> Any:
        """What `jax.numpy.asarray` and `jax.numpy.array` ask for: a copy."""
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Its elements, in place and read-only, for who takes DLPack; of plain types alone."""
    def __dlpack_device__(self) -> tuple[int, int]: ...
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
    content: str | Sequence[dict[str, str]]
    """A text, or parts `{"type": "text", "text": …}`, each of which is a line."""

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

@type_check_only
class Options(TypedDict, total=False):
    """How a prompt is continued: the options of `alight run`, with its defaults."""

    max_tokens: int | None
    """Most tokens; `None` or -1: until the model ends or the context is full."""
    stop: str | Sequence[str] | None
    """Texts that end the answer, and are left out."""
    temperature: float
    """0 always takes the most likely token; 0.8."""
    top_k: int
    """Keep so many of the most likely tokens; 0 keeps all; 40."""
    top_p: float
    """Keep the most likely tokens that make up this share of the probability; 1 keeps all; 0.95."""
    min_p: float
    """Keep the tokens at least this likely, relative to the most likely; 0 keeps all; 0.05."""
    repeat_penalty: float
    """Makes tokens seen lately less likely by this factor; 1 does not."""
    frequency_penalty: float
    """Subtracted from a token's logit for each time that it was seen lately; 0."""
    presence_penalty: float
    """Subtracted from a token's logit if it was seen lately; 0."""
    repeat_last_n: int
    """How many tokens count as seen lately; -1: all; 64."""
    min_keep: int
    """`top_p`, `min_p` and XTC leave at least this many tokens; 0."""
    dry_multiplier: float
    """DRY: makes a token that would continue a repetition less likely by this, times a power of `dry_base`; 0 does not; 0."""
    dry_base: float
    """DRY: the base of the power, whose exponent is the length of the repetition beyond `dry_allowed_length`; 1.75."""
    dry_allowed_length: int
    """DRY: shorter repetitions are free; 2."""
    dry_penalty_last_n: int
    """DRY: how many tokens are searched for repetitions; -1: all; 64."""
    dry_sequence_breakers: Sequence[str] | None
    """DRY: no repetition goes beyond these texts; `None`: line breaks, `:`, `"` and `*`."""
    xtc_probability: float
    """XTC: how often all likely tokens but the least likely of them are left out; 0: never."""
    xtc_threshold: float
    """XTC: from this probability on a token is likely; above 0.5, none is left out; 0.1."""
    top_n_sigma: float
    """Keep the tokens whose logits are at most this many standard deviations below the greatest; 0 or less keeps all; -1."""
    mirostat: int
    """1 or 2: draw with this version of Mirostat, in place of penalties, `top_n_sigma`, `top_k`, `top_p`, `min_p` and XTC; 0: do not."""
    mirostat_tau: float
    """Mirostat: the mean surprise of a token to aim at, in bits; 5."""
    mirostat_eta: float
    """Mirostat: how fast it learns; 0.1."""
    samplers: Sequence[str] | None
    """Turn off all stages but these: `penalties`, `dry`, `top_n_sigma`, `top_k`, `top_p`, `min_p`, `xtc`, `temperature`, always in this order."""
    seed: int | None
    """The same seed gives the same answer; `None` or -1: any."""
    logit_bias: dict[int, float] | None
    """What is added to the logits of tokens."""
    logprobs: int | None
    """Tell how likely each token was, and so many of the likeliest; `None`: do not."""
    ignore_eos: bool
    """Ignore the end-of-text token."""
    thinking: bool
    """`False` hides the model's thinking, and turns it off where the chat template has a switch for it."""
    parse_special: bool
    """Parse special tokens written in the prompt, such as <|im_end|>."""
    raw: bool
    """Give a text to the model as it is, without the chat template."""
    system: str | None
    """What the model is told before a text that goes through the chat template, or before a conversation."""
    json_schema: dict[str, Any] | bool | str | None
    """The answer is JSON of this schema, without blanks: a dict, `True` for any JSON, or the schema as a text."""
    grammar: str | None
    """The answer follows this grammar: llama.cpp's GBNF, or llguidance's Lark if it begins with `%llguidance`."""
    regex: str | None
    """The answer matches this regular expression, from its beginning to its end."""
    lora: str | dict[str, float] | None
    """An adapter that the model was opened with, by its name, or several with their scales; `None`: the model as it is."""

@type_check_only
class Logprob(TypedDict):
    """How likely a token was: the logarithm of its share in the softmax of the model's logits, before anything is done to choose one."""

    logprob: float
    top: dict[int, float]
    """Those of the likeliest tokens, the likeliest first."""

@final
class Completion:
    """An answer, with the fields of what `alight run --json` writes. `str` of it is its text."""

    @property
    def text(self) -> str:
        """What `alight run` would write into a pipe: thinking between <think> and </think>, then the answer."""
    @property
    def answer(self) -> str:
        """What was said to the user."""
    @property
    def thinking(self) -> str | None:
        """What the model thought; `None` if it did not."""
    @property
    def calls(self) -> list[Call]:
        """Calls of tools, if there were tools to call."""
    @property
    def tokens(self) -> list[int]: ...
    @property
    def logprobs(self) -> list[Logprob] | None:
        """How likely each of the tokens was, if `logprobs` was given."""
    @property
    def finish(self) -> Literal["stop", "length", "context", "interrupted"] | None:
        """Why it ended: the model ended it, or a text of `stop` did; `max_tokens`; no room; the stream was closed. `None` while it
        is made."""
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def reused_tokens(self) -> int:
        """How many tokens of the prompt were not computed, because they had been for an earlier one."""
    @property
    def seed(self) -> int:
        """The seed of the random choices."""

@final
class Stream:
    """An iterator of the pieces of an answer, which is made meanwhile. The pieces, joined, are `completion.text`.

    To leave it early, `close` it or forget it: nothing more of it is computed then. As a context manager it is closed at the end
    of the block. Any thread may take the next piece."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> str: ...
    @property
    def completion(self) -> Completion:
        """What there is of the answer; all of it once the iterator has ended."""
    def close(self) -> None:
        """Ends the answer here."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Array:
    """Numbers of type float32, row by row. NumPy, memoryview and whatever takes DLPack show them in place, read-only."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, outermost first."""
    @property
    def dtype(self) -> Literal["float32"]: ...
    @property
    def nbytes(self) -> int: ...
    def tolist(self) -> list[Any]:
        """As lists of Python's floats."""
    def numpy(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """As a NumPy array, without a copy."""
    def __jax_array__(self) -> Any:
        """What `jax.numpy.asarray` and `jax.numpy.array` ask for: a copy."""
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, at: int, /) -> Any: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Model:
    """An open model, which computes in threads of its own: other threads of Python run meanwhile, and answers that are asked for by
    several of them are computed together. What comes out depends on the model, the prompt, the options and the seed alone.

    It is closed when nothing refers to it any more, streams included, or by `close`, or at the end of a `with` block."""

    def __new__(
        cls,
        path: str | os.PathLike[str],
        *,
        context: int | None = None,
        threads: int | None = None,
        sequences: int = 8,
        load: Literal["auto", "mmap", "direct", "read"] = "auto",
        repack: Literal["auto", "on", "off"] = "auto",
        lock: bool = False,
        memory: int | None = None,
        prompt_precision: Literal[8, 16] = 8,
        cache_type: Literal["f16", "q8_0", "q4r"] = "f16",
        prompt_cache: int = ...,
        speculate: Literal["auto", "off"] | int | None = None,
        draft: str | os.PathLike[str] | None = None,
        pack: bool = False,
        strict: bool = False,
        offline: bool = False,
        isa: str | None = None,
        lora: dict[str, str | os.PathLike[str]] | None = None,
    ) -> Model:
        """Opens a GGUF file, or a folder with one model in it. The weights are mapped, and loaded in the background.

        A name that begins with `hf.co/` or another address of the hub is a model there, as `alight run` takes it: it is fetched if
        it is not in the cache, and with `offline` it is not fetched. `isa`: the kernels' SIMD level, such as `"avx2"`, which changes no answer;
        `None`: the best that this CPU has.
        `context`: positions of a prompt and its answer; 0 as many as the model was trained for; `None` 4096 of them at most.
        `threads`: to compute with, one per core if `None`. `sequences`: answers that are computed at the same time; others wait.
        `prompt_cache`: bytes of memory for what was computed of prompts, for those that begin alike. `memory`: bytes that the
        model may take. `draft`: a smaller model that proposes tokens. `pack`: the model is packed once, as by `alight run --pack`, and
        the packed file is used from then on; where none can be kept, there is a warning, and the model is used as it is. `strict`: a file whose metadata makes answers doubtful (keys that are not read, a
        pre-tokeniser that does not fit the vocabulary) is refused; without it there is a warning. `lora`: LoRA adapters that answers may have, by their names. The others are the options of `alight run`."""
    @property
    def path(self) -> Path: ...
    @property
    def name(self) -> str: ...
    @property
    def architecture(self) -> str: ...
    @property
    def parameters(self) -> int:
        """Weights in all tensors."""
    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
    @property
    def context(self) -> int:
        """Positions of a prompt and its answer."""
    @property
    def trained_context(self) -> int:
        """Positions that the model was trained for."""
    @property
    def threads(self) -> int:
        """Threads that compute."""
    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer and chat template, which may outlive the model."""
    def tokenize(self, text: str, *, add_bos: bool | None = None, parse_special: bool = False) -> list[int]:
        """The tokens of a text, as `Tokenizer.encode` has them."""
    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens, as `Tokenizer.decode` has it."""
    def generate(self, prompt: str | Sequence[int] | Sequence[dict[str, Any]], **options: Unpack[Options]) -> Completion:
        """Answers a prompt as `alight run` does: a text goes through the model's chat template, if it has one, unless `raw` is
        set; token ids are continued as they are; messages are a conversation."""
    def stream(self, prompt: str | Sequence[int] | Sequence[dict[str, Any]], **options: Unpack[Options]) -> Stream:
        """The same, in pieces while it is made."""
    def chat(
        self,
        messages: Sequence[dict[str, Any]] | Sequence[Message],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """The next message of a conversation, by the model's chat template. `tools` are what the model may call, as JSON
        schemas."""
    def stream_chat(
        self,
        messages: Sequence[dict[str, Any]] | Sequence[Message],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        **options: Unpack[Options],
    ) -> Stream:
        """The same, in pieces while it is made."""
    def batch(self, prompts: Iterable[str | Sequence[int] | Sequence[dict[str, Any]]], **options: Unpack[Options]) -> list[Completion]:
        """Answers several prompts at the same time, each as `generate` would: `sequences` of them, the others wait."""
    def logits(self, prompt: str | Sequence[int] | Sequence[dict[str, Any]], *, all: bool = False, parse_special: bool = False) -> Array:
        """The logits of what follows a prompt, [vocab_size]; with `all`, of what follows each of its tokens, [tokens, vocab_size].
        A text has no chat template here."""
    @overload
    def embed(
        self,
        text: str | Sequence[int] | Iterable[str | Sequence[int]],
        *,
        pooling: Literal["mean", "cls", "last"] | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        truncate: bool = False,
        parse_special: bool = False,
        usage: Literal[False] = False,
    ) -> Array:
        """A text, or its tokens, as a vector: the final hidden states of the tokens, pooled; of several, one row each.
        `pooling`: as the file says, or else the mean. `normalize`: of length 1. `dimensions`: only the first of its numbers.
        `prompt_name`: the prompt of the file that precedes each text. `truncate`: of a text that is too long, the beginning.
        `usage`: the result is a pair, of the vectors and the number of tokens that were read of each text."""
    @overload
    def embed(
        self,
        text: str | Sequence[int] | Iterable[str | Sequence[int]],
        *,
        pooling: Literal["mean", "cls", "last"] | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        truncate: bool = False,
        parse_special: bool = False,
        usage: Literal[True],
    ) -> tuple[Array, Any]: ...
    @overload
    def rerank(self, query: str, documents: Sequence[str], *, raw: bool = False, truncate: bool = True, usage: Literal[False] = False) -> list[float]:
        """How well documents suit a query, in their order, by a model with a classifier: probabilities, or with `raw` what the
        classifier puts out. Of a pair that is too long, the document is cut. `usage`: the result is a pair, of the scores and the number of
        tokens that were read of each pair of a query and a document."""
    @overload
    def rerank(self, query: str, documents: Sequence[str], *, raw: bool = False, truncate: bool = True, usage: Literal[True]) -> tuple[list[float], list[int]]: ...
    def close(self) -> None:
        """Ends what is computed, and gives the memory back. Streams raise `ClosedError` then."""
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...
