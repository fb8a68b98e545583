"""llama.cpp as a library: the package `xllamacpp`, and what is called of a native build through ctypes."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

from evidence.lib.lazy import lazily

gguf = lazily("gguf")
np = lazily("numpy")

CONTEXT = 2048
# Of a step, how many candidates are listed; those further below the best than KEEP are not recorded.
CANDIDATES, KEEP = 5, 3.0


class Llama:
    """llama.cpp at its defaults, one sequence, nothing cached between prompts. On one thread: with two it waits
    for itself for minutes where anything else runs. `exact`: an F32 cache and no flash attention."""

    def __init__(self, path: Path, exact: bool = False, adapter: Path | None = None):
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = CONTEXT
        params.n_parallel = 1
        params.verbosity = 1
        params.cpuparams.n_threads = 1
        params.cpuparams_batch.n_threads = 1
        if exact:
            params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
            params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        if adapter:
            lora = xllamacpp.CommonAdapterLoraInfo()
            lora.path, lora.scale = str(adapter), 1.0
            params.lora_adapters = [lora]
        self.plain = None
        # Its log goes to file descriptor 2, where it would bury what the command says.
        self.stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.close(null)
        try:
            self.server = xllamacpp.Server(params)
        except RuntimeError as error:
            self.close()
            raise SystemExit(f"{path}: llama.cpp does not run it: {error}") from error

    def __enter__(self) -> Llama:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self.server = None
        os.dup2(self.stderr, 2)
        os.close(self.stderr)

    def complete(self, prompt, count: int, **more) -> dict:
        answer = self.server.handle_completions(
            {"prompt": prompt, "n_predict": count, "temperature": 0, "n_probs": CANDIDATES, "cache_prompt": False,
             "return_tokens": True, "verbose": True, **more}
        )
        if "choices" not in answer:
            raise SystemExit(f"llama.cpp: {answer}")
        return answer

    def tokens(self, prompt, count: int) -> list[int]:
        return self.complete(prompt, count)["__verbose"]["tokens"]

    def next(self, prompt, **more) -> list[dict]:
        """The candidates for the token after a prompt. The server is made to choose something that it lists (`plain`);
        log-probabilities are those before that bias."""
        if self.plain is None:
            self.plain = self.tokens("The capital of France is", 1)[0]
        answer = self.complete(prompt, 1, logit_bias=[[self.plain, 1000.0]], cache_prompt=True, **more)
        return answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]

    def along(self, prompt: str, tokens: list[int]) -> list:
        """The candidates at each step of a continuation that is given."""
        return [pruned(self.next([prompt, *tokens[:i]])) for i in range(len(tokens))]


def pruned(candidates) -> list:
    best = candidates[0]["logprob"]
    return [[c["id"], round(c["logprob"], 3)] for c in candidates if c["logprob"] >= best - KEEP]


# --- tokens --------------------------------------------------------------------------------------

CHILD = """
import json, os, sys, urllib.request
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx = 256
params.warmup = False
server = xllamacpp.Server(params)
answers = []
for text, add_special, parse_special in json.load(open(sys.argv[2])):
    body = json.dumps({"content": text, "add_special": add_special, "parse_special": parse_special})
    request = urllib.request.Request(server.listening_address + "/tokenize", body.encode(),
                                     {"Content-Type": "application/json"})
    answers.append(json.load(urllib.request.urlopen(request))["tokens"])
json.dump(answers, open(sys.argv[3], "w"))
os._exit(0)
"""


def token_ids(model: Path, questions: list, work: Path) -> list:
    """Of (text, add special tokens, recognise special tokens); in a process of its own, because the server does not stop
    by itself."""
    asked, answered, log = work / "llama_asked.json", work / "llama_answered.json", work / "llama.log"
    asked.write_text(json.dumps(questions))
    answered.unlink(missing_ok=True)
    with log.open("w") as out:
        subprocess.run([sys.executable, "-c", CHILD, str(model), str(asked), str(answered)], stdout=out, stderr=out, check=False)
    if not answered.is_file():
        raise SystemExit(f"llama.cpp gave no answer; see {log}")
    return json.loads(answered.read_text())


# --- through ctypes ------------------------------------------------------------------------------

def library(path: Path) -> ctypes.CDLL:
    """libllama of a native build, which says nothing."""
    lib = ctypes.CDLL(str(path))
    lib.quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    lib.llama_log_set(lib.quiet, None)
    lib.llama_backend_init()
    return lib


def quantizer(path: Path | None = None):
    """`ggml_quantize_chunk` of a library, else of the xllamacpp wheel: blocks(type, weights [rows, columns][, importance [columns]])."""
    if path is None:
        import xllamacpp

        path = next(Path(xllamacpp.__file__).parent.glob("*.so"), None) or sys.exit("xllamacpp has no library")
    chunk = ctypes.CDLL(str(path)).ggml_quantize_chunk
    chunk.restype = ctypes.c_size_t
    chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]

    def blocks(name: str, x, importance=None) -> np.ndarray:
        kind = gguf.GGMLQuantizationType.__members__.get(name, 42)
        length, size = gguf.GGML_QUANT_SIZES.get(kind, (64, 18))  # Q2_0, which is newer than the package
        out = np.zeros(x.size // length * size, np.uint8)
        done = chunk(int(kind), x.ctypes.data, out.ctypes.data, 0, x.shape[0], x.shape[1],
                     None if importance is None else importance.ctypes.data)
        assert done == out.size, (done, out.size)
        return out

    return blocks
