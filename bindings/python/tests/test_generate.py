"""Answers of the native engine in this process, beside those of the command and of llama.cpp."""

import gc
import inspect
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
import time

import alight
import numpy as np
import pytest
from conftest import MODELS, PATH, ROOT, in_process, with_signals, write_safetensors
from evidence.lib import tiny_models
from evidence.lib.tiny_models import Tiny
from test_model import write_model

QUESTION = "Why is the sky blue?"
PET = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "legs": {"type": "integer", "minimum": 0, "maximum": 8}},
    "required": ["name", "legs"],
    "additionalProperties": False,
}
YES = 'root ::= "yes" | "no"'
TOOLS = [
    {
        "type": "function",
        "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},
    }
]


@pytest.fixture(scope="module")
def run(command):
    """The line of JSON of `alight run`."""

    def run(*args, **more):
        told = subprocess.run([command, "run", PATH, *map(str, args), "--json"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300, **more)
        assert told.returncode == 0, told.stderr
        return json.loads(told.stdout)

    return run


def same(completion, line):
    for name in ("text", "answer", "thinking", "tokens", "finish", "prompt_tokens", "seed"):
        assert getattr(completion, name) == line[name], name


def test_what_a_model_is(model):
    assert (model.path, model.name, model.architecture) == (PATH, PATH.stem, "llama")
    assert (model.hidden_size, model.vocab_size, model.context, model.trained_context) == (576, 49152, 4096, 8192)
    assert (model.threads, model.closed) == (2, False) and model.parameters > 130e6
    assert repr(model) == f"<alight.Model '{model.name}' (llama)>"


CASES = [
    (QUESTION, {"temperature": 0.0, "max_tokens": 24}, ["--temp", 0, "-n", 24]),
    (QUESTION, {"seed": 7, "max_tokens": 24}, ["--seed", 7, "-n", 24]),
    ("Once upon a time", {"seed": 1, "max_tokens": 40, "raw": True}, ["--raw", "--seed", 1, "-n", 40]),
    (
        "Hello",
        {"system": "You are a pirate.", "seed": 3, "temperature": 1.3, "top_k": 0, "top_p": 0.9, "min_p": 0.0, "max_tokens": 24},
        ["--system", "You are a pirate.", "--seed", 3, "--temp", 1.3, "--top-k", 0, "--top-p", 0.9, "--min-p", 0, "-n", 24],
    ),
    (
        "1 2 3 1 2 3 1 2",
        {"raw": True, "seed": 2**40, "repeat_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1, "repeat_last_n": 8, "max_tokens": 24},
        ["--raw", "--seed", 2**40, "--repeat-penalty", 1.3, "--frequency-penalty", 0.2, "--presence-penalty", 0.1, "--repeat-last-n", 8, "-n", 24],
    ),
    (
        "1 2 3 1 2 3 1 2",
        {"raw": True, "seed": 5, "mirostat": 2, "mirostat_tau": 2.5, "mirostat_eta": 0.3, "max_tokens": 24},
        ["--raw", "--seed", 5, "--mirostat", 2, "--mirostat-ent", 2.5, "--mirostat-lr", 0.3, "-n", 24],
    ),
    (
        "1 2 3 1 2 3 1 2",
        {
            "raw": True, "seed": 6, "dry_multiplier": 2.0, "dry_base": 1.5, "dry_allowed_length": 1, "dry_penalty_last_n": -1,
            "dry_sequence_breakers": ["4", "a\n"], "xtc_probability": 0.5, "xtc_threshold": 0.05, "top_n_sigma": 1.5,
            "samplers": ["dry", "top_n_sigma", "xtc", "temperature"], "max_tokens": 24,
        },
        [
            "--raw", "--seed", 6, "--dry-multiplier", 2, "--dry-base", 1.5, "--dry-allowed-length", 1, "--dry-penalty-last-n", -1,
            "--dry-sequence-breaker", "4", "--dry-sequence-breaker", "a\n", "--xtc-probability", 0.5, "--xtc-threshold", 0.05,
            "--top-nsigma", 1.5, "--sampler-seq", "dsxt", "-n", 24,
        ],
    ),
    ("The end.", {"raw": True, "temperature": 0.0, "ignore_eos": True, "max_tokens": 30}, ["--raw", "--temp", 0, "--ignore-eos", "-n", 30]),
    ("A<|im_end|>", {"raw": True, "parse_special": True, "temperature": 0, "max_tokens": 8}, ["--raw", "--parse-special", "--temp", 0, "-n", 8]),
    (QUESTION, {"temperature": 0.0, "stop": ["light", "blue"], "max_tokens": 60}, ["--temp", 0, "--stop", "light", "--stop", "blue", "-n", 60]),
    (QUESTION, {"temperature": 0.0, "max_tokens": 0}, ["--temp", 0, "-n", 0]),
    ("Describe a pet.", {"json_schema": PET, "seed": 5, "max_tokens": 64}, ["--json-schema", json.dumps(PET), "--seed", 5, "-n", 64]),
    ("Is the sky blue?", {"grammar": YES, "seed": 2, "ignore_eos": True}, ["--grammar", YES, "--seed", 2, "--ignore-eos"]),
]


@pytest.mark.parametrize("prompt, options, flags", CASES, ids=range(len(CASES)))
def test_an_answer_is_that_of_the_command(model, run, prompt, options, flags):
    line = run(prompt, *flags)
    line["seed"] = line["seed"] if "seed" in options else None
    answer = model.generate(prompt, **options)
    if "seed" not in options:
        line["seed"] = answer.seed
    same(answer, line)
    assert str(answer) == answer.text
    # In pieces it is the same.
    stream = model.stream(prompt, **options | {"seed": answer.seed})
    pieces = list(stream)
    assert "" not in pieces and "".join(pieces) == line["text"]
    same(stream.completion, line)
    assert next(stream, None) is None


def test_an_answer_that_ends_by_itself_or_with_the_context(run, model):
    answer = model.generate("Say yes.", temperature=0)
    same(answer, run("Say yes.", "--temp", 0) | {"seed": answer.seed})
    assert answer.finish == "stop" and answer.tokens
    with alight.Model(PATH, context=48) as small:
        answer = small.generate("Once upon a time", raw=True, ignore_eos=True, seed=5)
        line = run("Once upon a time", "--raw", "--ignore-eos", "--seed", 5, "-c", 48)
        same(answer, line)
        assert answer.finish == "context"


def test_greedy_answers_are_those_of_llama_cpp(model):
    """Where llama.cpp's choice was clear; `python -m evidence agree greedy` looks at the others, too."""
    told = json.loads((ROOT / "tests/data/greedy/smollm2.json").read_text())["answers"]
    alike = 0
    for one in told[:14]:
        tokens = model.generate(one["prompt"], raw=True, parse_special=True, temperature=0, max_tokens=len(one["tokens"])).tokens
        for ours, theirs, top in zip(tokens, one["tokens"], one["top"]):
            clear = len(top) < 2 or top[0][1] - top[1][1] > 0.5
            assert ours == theirs or not clear, one["prompt"]
            if ours != theirs:
                break
            alike += 1
    assert alike > 250, "most tokens are compared"


def test_chat_goes_through_the_template(model, run):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    options = {"seed": 4, "max_tokens": 24}
    answer = model.chat(messages, **options)
    same(answer, run(QUESTION, "--system", "Be brief.", "--seed", 4, "-n", 24))
    stream = model.stream_chat(messages, **options)
    assert "".join(stream) == answer.text and stream.completion.tokens == answer.tokens
    # The other ways to say it.
    assert model.generate(messages, **options).tokens == answer.tokens
    assert model.chat(messages[1:], system="Be brief.", **options).tokens == answer.tokens
    tokens = model.tokenizer.chat(messages)
    assert len(tokens) == answer.prompt_tokens and model.generate(tokens, **options).tokens == answer.tokens
    # What came is part of the next turn, and was computed before.
    longer = [*messages, {"role": "assistant", "content": answer.answer}, {"role": "user", "content": "Shorter."}]
    assert model.chat(longer, max_tokens=4, temperature=0).prompt_tokens > answer.prompt_tokens


def test_ctrl_c_ends_a_list_of_pieces():
    """Nothing of Python's runs in `list` that would look at signals, and here no piece has to be waited for."""
    code = """
import ctypes, itertools, os, signal, sys
import alight
model = alight.Model(sys.argv[1], threads=1)
[token] = model.tokenize(" a", add_bos=False)
stream = model.stream("Once", raw=True, logit_bias={token: 1000.0}, temperature=0, max_tokens=20)
next(stream)
# Meanwhile all of it has been made: this is longer, and they are computed side by side.
model.generate("Once", raw=True, temperature=0, max_tokens=40, ignore_eos=True)
press = map(ctypes.CDLL(None).kill, [os.getpid()], [int(signal.SIGINT)])
try:
    list(itertools.chain(press, stream))
except KeyboardInterrupt:
    print(stream.completion.finish, len(stream.completion.tokens) < 20)
"""
    run = subprocess.run(with_signals([], sys.executable, "-c", code, PATH), capture_output=True, text=True, timeout=300)
    assert run.stdout.split() == ["interrupted", "True"], run.stdout + run.stderr


def test_parts_of_a_content_are_lines(model):
    """As OpenAI's clients write them, and as `alight serve` reads them."""
    parts = [{"role": "user", "content": [{"type": "text", "text": "Name a colour."}, {"type": "text", "text": "Name a bird."}]}]
    plain, options = [{"role": "user", "content": "Name a colour.\nName a bird."}], {"temperature": 0, "max_tokens": 4}
    tokenizer = model.tokenizer
    assert tokenizer.render(parts) == tokenizer.render(plain)
    assert tokenizer.chat(parts) == tokenizer.chat(plain) == tokenizer.chat(parts, tools=[])
    answers = [model.chat(parts, **options), model.generate(parts, **options), "".join(model.stream_chat(parts, **options))]
    assert {str(one) for one in answers} == {model.chat(plain, **options).text}
    for content in ([{"type": "image_url", "image_url": {"url": "x"}}], [{"type": "text"}], ["text"]):
        for call in (model.chat, tokenizer.chat, tokenizer.render):
            with pytest.raises(TypeError, match="content"):
                call([{"role": "user", "content": content}])
    with pytest.raises(TypeError, match="content: expected a text"):
        tokenizer.chat([{"role": "user", "content": 3}])


def test_help_tells_the_options(model):
    told = inspect.signature(alight.Model.generate)
    assert told.parameters["temperature"].default == 0.8 and told.parameters["stop"].kind is inspect.Parameter.KEYWORD_ONLY
    names = list(told.parameters)[2:]
    with pytest.raises(TypeError) as problem:
        model.generate("x", temp=1)
    assert str(problem.value).partition("there are ")[2].split(", ") == names
    for name in ("stream", "chat", "stream_chat", "batch"):
        assert set(names) <= set(inspect.signature(getattr(alight.Model, name)).parameters)
    assert all(name in alight.Model.generate.__doc__ for name in names)
    assert all(name in alight.Model.__doc__ for name in list(inspect.signature(alight.Model).parameters)[1:])


def test_answers_are_held(model):
    """To a schema as a dict or as a text, a grammar, an expression; in pieces, in a conversation and of several prompts too."""
    pet = model.generate("Describe a pet.", json_schema=PET, temperature=0, max_tokens=80)
    told = json.loads(pet.text)
    assert set(told) == {"name", "legs"} and 0 <= told["legs"] <= 8 and isinstance(told["name"], str) and pet.finish == "stop"
    question = [{"role": "user", "content": "Describe a pet."}]
    for text in (
        model.generate("Describe a pet.", json_schema=json.dumps(PET), temperature=0, max_tokens=80).text,
        "".join(model.stream("Describe a pet.", json_schema=PET, temperature=0, max_tokens=80)),
        model.chat(question, json_schema=PET, temperature=0, max_tokens=80).text,
        model.batch(["Describe a pet.", "Hello"], json_schema=PET, temperature=0, max_tokens=80)[0].text,
    ):
        assert text == pet.text
    for seed in range(4):
        assert model.generate("Is the sky blue?", grammar=YES, seed=seed).text in ("yes", "no")
        assert re.fullmatch(r"[0-9]{3}-[a-f]+", model.generate("A code:", regex=r"[0-9]{3}-[a-f]{1,4}", seed=seed).text)
    assert isinstance(json.loads(model.generate("A list.", json_schema={"type": "array", "maxItems": 2}, temperature=0).text), list)
    # A neighbour that is held changes no bit of another one.
    alone = model.generate("Count.", temperature=0, max_tokens=16).text
    assert model.batch(["Count."], temperature=0, max_tokens=16)[0].text == alone


def test_what_no_answer_can_be_held_to(model):
    for options, error, said in [
        ({"json_schema": PET, "regex": "a"}, alight.OptionError, "there are json_schema and regex: an answer is held to one of them"),
        ({"json_schema": "{"}, alight.OptionError, "json_schema: it is not JSON"),
        ({"json_schema": 3}, alight.OptionError, "json_schema: the schema is 3, expected an object"),
        ({"json_schema": {"type": "strange"}}, alight.OptionError, "json_schema: it makes no grammar"),
        ({"json_schema": {"a": object()}}, TypeError, "json_schema"),
        ({"grammar": ""}, alight.OptionError, "grammar: the grammar is empty"),
        ({"grammar": "root ::= nothing"}, alight.OptionError, "grammar: it makes no grammar"),
        ({"regex": ""}, alight.OptionError, "regex: it makes no grammar: the regular expression is empty"),
        ({"regex": "("}, alight.OptionError, "regex: it makes no grammar"),
        ({"regex": "a" * 5000}, alight.OptionError, "regex: it has 5000 bytes, expected at most 4096"),
        ({"grammar": 3}, TypeError, "grammar: "),
    ]:
        with pytest.raises(error, match=said):
            model.generate("x", **options)
    with pytest.raises(alight.OptionError, match="there are tools and regex"):
        model.chat([{"role": "user", "content": "x"}], tools=TOOLS, regex="a")


def test_tools_reach_the_model(model):
    """This template shows none: `Tokenizer.chat` is the template, and `Model.chat` describes them in the system message."""
    asked = [{"role": "user", "content": "Look."}]
    plain = model.tokenizer.chat(asked)
    assert model.tokenizer.chat(asked, tools=TOOLS) == plain
    answers = [model.chat(asked, tools=tools, max_tokens=4, temperature=0) for tools in (None, TOOLS)]
    assert answers[0].prompt_tokens == len(plain) < answers[1].prompt_tokens and answers[1].calls == []


def test_a_prompt_that_begins_alike_is_computed_once(model):
    text = " ".join(f"The number {n} is followed by {n + 1}." for n in range(60))
    first = model.generate(text, raw=True, temperature=0, max_tokens=4)
    again = model.generate(text + " The", raw=True, temperature=0, max_tokens=4)
    assert first.reused_tokens < 64 and again.reused_tokens >= first.prompt_tokens // 64 * 64
    with alight.Model(PATH, threads=1, prompt_cache=0, speculate="off") as other:
        alone = other.generate(text + " The", raw=True, temperature=0, max_tokens=4)
    assert alone.reused_tokens == 0 and alone.tokens == again.tokens


def test_tokens_and_text(model):
    data = ROOT / "tests/data"
    strings = json.loads((data / "tokenizer_strings.json").read_text())
    ids = json.loads((data / "tokenizer_ids_smollm2.json").read_text())
    strings, ids = (list(x.values()) if isinstance(x, dict) else x for x in (strings, ids))
    assert len(strings) > 20
    tokenizer = alight.Tokenizer(PATH)
    for text in [s for s in map(str, strings) if s][:50]:
        tokens = model.tokenize(text)
        assert tokens == tokenizer.encode(text) and model.detokenize(tokens) == tokenizer.decode(tokens)
    assert model.tokenize("<|im_end|>", parse_special=True) == [2] != model.tokenize("<|im_end|>")
    assert model.detokenize(model.tokenize("grün 日本 🚀")) == "grün 日本 🚀"


def test_seeds(model):
    ask = {"max_tokens": 12, "temperature": 2.0, "top_k": 0, "min_p": 0.0}
    first, other = (model.generate(QUESTION, **ask) for _ in range(2))
    assert first.seed != other.seed and first.tokens != other.tokens
    assert model.generate(QUESTION, seed=first.seed, **ask).tokens == first.tokens
    assert model.generate(QUESTION, seed=None, max_tokens=1).seed != model.generate(QUESTION, seed=-1, max_tokens=1).seed


def test_biases(model):
    ask = {"raw": True, "temperature": 0, "max_tokens": 6}
    free = model.generate("The capital of France is", **ask)
    held = model.generate("The capital of France is", logit_bias={free.tokens[0]: -float("inf")}, **ask)
    assert held.tokens[0] != free.tokens[0]
    assert set(model.generate("Hello", logit_bias={7042: 1000.0}, **ask).tokens) == {7042}


def test_errors(model, tmp_path):
    assert issubclass(alight.FormatError, ValueError) and issubclass(alight.FileChangedError, OSError)
    assert issubclass(alight.NotEnoughMemoryError, MemoryError)
    classes = [getattr(alight, name) for name in alight.__all__ if name.endswith("Error")]
    assert len(classes) == 10 and all(issubclass(one, alight.AlightError) for one in classes)
    again = pickle.loads(pickle.dumps(alight.PromptError("why")))
    assert type(again) is alight.PromptError and again.args == ("why",)

    (tmp_path / "text").write_text("Once upon a time")
    (tmp_path / "one").mkdir()
    write_safetensors(tmp_path / "one" / "a.safetensors", {"a": np.zeros(4, np.float32)})
    for path in (tmp_path / "one", tmp_path / "one" / "a.safetensors"):
        with pytest.raises(alight.FormatError, match="alight convert .* makes GGUF of it"):
            alight.Model(path)
    for path, error in [(tmp_path / "nothing", FileNotFoundError), (tmp_path / "text", alight.FormatError), (tmp_path, alight.FormatError)]:
        with pytest.raises(error):
            alight.Model(path)
    for options, error, said in [
        ({"threads": 0}, alight.OptionError, "threads is 0, expected a number from 1 to 256"),
        ({"sequences": 2000}, alight.OptionError, "sequences is 2000"),
        ({"load": "slowly"}, alight.OptionError, "load is 'slowly'"),
        ({"cache_type": "q4"}, alight.OptionError, "cache_type is q4, expected f16, q8_0 or q4r"),
        ({"prompt_precision": 7}, alight.OptionError, "expected 8 or 16"),
        ({"speculate": 8}, alight.OptionError, "speculate is '8'"),
        ({"context": 2**40}, alight.OptionError, "context"),
        ({"context": 2**70}, alight.OptionError, "context is 1180591620717411303424, expected a smaller number"),
        ({"context": -1}, alight.OptionError, "context is -1, expected a whole number not below 0"),
        ({"threads": -1}, alight.OptionError, "threads is -1, expected a number from 1 to 256"),
        ({"sequences": -2}, alight.OptionError, "sequences is -2, expected a number from 1"),
        ({"memory": -1}, alight.OptionError, "memory is -1"),
        ({"prompt_cache": -1}, alight.OptionError, "prompt_cache is -1"),
        ({"prompt_precision": -8}, alight.OptionError, "expected 8 or 16"),
        ({"speculate": -1}, alight.OptionError, "speculate is '-1'"),
        ({"draft": tmp_path / "text"}, alight.FormatError, "text"),
        ({"colour": 1}, TypeError, "colour"),
    ]:
        with pytest.raises(error, match=said.replace("'", ".")):
            alight.Model(PATH, **options)
    for prompt, options, error, said in [
        ("x", {"temperature": -1}, alight.OptionError, "temperature is -1, expected a number not below 0"),
        ("x", {"top_p": 1.5}, alight.OptionError, "top_p is 1.5"),
        ("x", {"max_tokens": -2}, alight.OptionError, "max_tokens is -2"),
        ("x", {"seed": 2**64}, alight.OptionError, "seed is"),
        ("x", {"top_k": 2**80}, alight.OptionError, "top_k is 1208925819614629174706176, expected a smaller number"),
        ("x", {"top_k": -2}, alight.OptionError, "top_k is -2, expected a whole number, not below 0, or -1"),
        ("x", {"mirostat": 3}, alight.OptionError, "mirostat is 3, expected a whole number from 0 to 2"),
        ("x", {"dry_base": 0.5}, alight.OptionError, "dry_base is 0.5, expected a number not below 1"),
        ("x", {"samplers": ["temperature", "top_k"]}, alight.OptionError, "samplers: top_k comes after temperature"),
        ("x", {"dry_sequence_breakers": ["a" * 41]}, alight.OptionError, "at most 32, of at most 40 bytes each"),
        ("x", {"dry_sequence_breakers": "a"}, TypeError, "^dry_sequence_breakers: "),
        ("x", {"logit_bias": {-1: 1.0}}, alight.OptionError, "logit_bias: -1 is no token id"),
        ("x", {"stop": 3}, TypeError, "^stop: expected a text or a list of texts$"),
        ("x", {"stop": ["a", 3]}, TypeError, "^stop: expected a text or a list of texts$"),
        (b"hi", {}, TypeError, "not bytes"),
        (bytearray(b"hi"), {}, TypeError, "not bytes"),
        ("x", {"temp": 1}, TypeError, "there is no option 'temp': there are max_tokens, stop, temperature"),
        ("x", {"top_k": "a"}, TypeError, "top_k: "),
        ("x", {"raw": True, "system": "s"}, alight.OptionError, "system needs"),
        ("", {"raw": True}, alight.PromptError, "no tokens"),
        ([], {}, alight.PromptError, "empty"),
        ([49152], {}, alight.PromptError, "token id 49152 is outside the vocabulary"),
        ([1] * 5000, {}, alight.ContextFullError, "the prompt has 5000 tokens, and the context has 4096 positions; .* with context=5000 or more"),
        ([1] * 9000, {}, alight.ContextFullError, "with context=…, but the model was trained for 8192"),
        ("x" * 10**7, {}, alight.ContextFullError, "10000000 bytes.* or give a larger context=…$"),
        (3.5, {}, TypeError, "a prompt is a text"),
        ([{"content": "no role"}], {}, TypeError, r"^messages\[0\].role: it is missing, expected .system"),
        ([{"role": "user"}], {}, TypeError, r"^messages\[0\].content: it is missing, expected a string$"),
        ([{"role": "user", "content": "a"}, ("user", "b")], {}, TypeError, r"^messages\[1\]: it is a list of 2, expected an object$"),
    ]:
        with pytest.raises(error, match=said):
            model.generate(prompt, **options)
        with pytest.raises(error, match=said):
            model.stream(prompt, **options)
    for messages, said in [
        ("Hi", "^messages: expected a list of messages, each a dict with a role and a content, found str$"),
        ({"role": "user", "content": "Hi"}, "^messages: expected a list of messages, .* found dict$"),
        (5, "^messages: expected a list of messages, found int$"),
        ([], "^messages: there is none$"),
        ([{"role": "user", "content": None}], r"^messages\[0\].content: it is null, expected a string$"),
        ([{"role": "someone", "content": "a"}], r"^messages\[0\].role: it is .someone., expected .system"),
    ]:
        with pytest.raises(TypeError, match=said):
            model.chat(messages)
    with pytest.raises(TypeError, match="^tools"):
        model.chat([{"role": "user", "content": "a"}], tools=5)
    for made in (alight.Tokenizer, alight.config):
        with pytest.raises(TypeError, match="expected the path of a model or an open catalog, found NoneType"):
            made(None)
    # None of it has harmed the model.
    assert model.generate("Hello", max_tokens=2, raw=True).tokens


def test_another_model_and_other_options(command):
    path = MODELS / "gemma-3-270m-q4_k_m.gguf"
    if not path.exists():
        pytest.skip(f"{path} is not there; `make models` fetches it")
    flags = ["--raw", "--seed", "2", "-n", "20", "--cache-type", "q8_0", "--prompt-precision", "16", "--speculate", "3", "--json"]
    told = subprocess.run([command, "run", path, "Roses are red,", *flags], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    with alight.Model(path, cache_type="q8_0", prompt_precision=16, speculate=3, sequences=2, threads=2, draft=path) as model:
        same(model.generate("Roses are red,", raw=True, seed=2, max_tokens=20), json.loads(told.stdout))


def test_a_model_without_a_template(tmp_path, command):
    path = write_model(tmp_path / "tiny.gguf")
    with alight.Model(tmp_path, threads=1) as model:
        assert (model.context, model.path) == (128, tmp_path)
        answer = model.generate("the", seed=1, max_tokens=6, ignore_eos=True)
        assert answer.tokens == model.generate("the", raw=True, seed=1, max_tokens=6, ignore_eos=True).tokens
        for call in (model.chat, model.stream_chat, model.generate):
            with pytest.raises(alight.PromptError, match="no chat template"):
                call([{"role": "user", "content": "Hi"}])
        with pytest.raises(alight.OptionError, match="system needs"):
            model.generate("the", system="x")
    told = subprocess.run([command, "run", path, "the", "--raw", "--seed", "1", "-n", "6", "--ignore-eos", "--json"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    same(answer, json.loads(told.stdout))


def test_a_model_that_is_packed_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tiny_models.write(Tiny("llama", "llama", layers=2), tmp_path / "m.gguf")
    options = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
    with alight.Model(path, threads=1, context=64) as model:
        plain = model.generate([1, 2, 3], **options)
    made = set()
    for _ in range(2):
        with alight.Model(path, threads=1, context=64, pack=True) as model:
            assert (model.path, model.name) == (tmp_path / "m.packed.gguf", "m")
            assert model.generate([1, 2, 3], **options).tokens == plain.tokens
        made.add(model.path.stat().st_ino)
    assert len(made) == 1
    # The folder of a link is another program's, and here there is no other place.
    (tmp_path / "cache").write_text("no folder")
    link = tmp_path / "hub" / "link.gguf"
    link.parent.mkdir()
    link.symlink_to(path)
    with pytest.warns(RuntimeWarning, match="the model is used as it is: packing failed"), alight.Model(link, threads=1, context=64, pack=True) as model:
        assert model.path == link and model.generate([1, 2, 3], **options).tokens == plain.tokens
    with pytest.raises(FileNotFoundError):
        alight.Model(tmp_path / "none.gguf", pack=True)


def test_weights_that_are_no_numbers(tmp_path):
    path = write_model(tmp_path / "tiny.gguf")
    offset = alight.open(path)["blk.1.ffn_up.weight"].offset
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 4096)
    with alight.Model(path, threads=1) as model:
        for call in (lambda: model.generate("the"), lambda: list(model.stream("the")), lambda: model.logits("the"), lambda: model.embed("the")):
            with pytest.raises(alight.ComputeError, match="blk.1.ffn_up.weight"):
                call()


def test_a_file_that_is_cut_short(tmp_path):
    path = tmp_path / "short.gguf"
    shutil.copy(PATH, path)
    with alight.Model(path, threads=2, load="mmap", repack="off") as model:
        stream = model.stream("Once", raw=True, ignore_eos=True)
        next(stream)
        os.truncate(path, 4096)
        with pytest.raises(alight.FileChangedError, match="short.gguf"):
            list(stream)
        with pytest.raises(alight.FileChangedError, match="short.gguf"):
            model.generate("Once")


def test_threads_share_a_model_and_change_no_bit(model):
    prompts = [f"Count from {n} to {n + 5}:" for n in range(6)]
    alone = [model.generate(p, raw=True, seed=i, max_tokens=16).tokens for i, p in enumerate(prompts)]
    found = [None] * len(prompts)

    def work(i):
        found[i] = "".join(model.stream(prompts[i], raw=True, seed=i, max_tokens=16)), model.generate(prompts[i], raw=True, seed=i, max_tokens=16).tokens

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(prompts))]
    [thread.start() for thread in threads]
    [thread.join(120) for thread in threads]
    assert [tokens for _, tokens in found] == alone
    assert [text for text, _ in found] == [model.detokenize(tokens) for tokens in alone]


def test_several_threads_take_pieces_of_one_stream(model):
    stream = model.stream("Once", raw=True, seed=1, max_tokens=30, ignore_eos=True)
    pieces = []
    threads = [threading.Thread(target=lambda: pieces.extend(stream)) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join(120) for thread in threads]
    assert sorted(pieces) == sorted(model.stream("Once", raw=True, seed=1, max_tokens=30, ignore_eos=True))


def test_python_runs_while_an_answer_is_made(model):
    """Nobody takes the interpreter from a thread here: it gives it away."""
    steps, ended = [0], threading.Event()

    def count():
        while not ended.is_set():
            steps[0] += 1
            time.sleep(0)

    other = threading.Thread(target=count)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    other.start()
    try:
        begun = steps[0]
        model.generate("Once", raw=True, seed=1, max_tokens=8, ignore_eos=True)
        assert steps[0] > begun
    finally:
        ended.set()
        sys.setswitchinterval(before)
        other.join()


def test_streams_that_are_left(model):
    ask = {"raw": True, "seed": 1, "ignore_eos": True}
    with model.stream("Once", **ask) as stream:
        first = next(stream)
    assert list(stream) == [] and stream.completion.finish == "interrupted"
    assert stream.completion.text.startswith(first)
    # More of them than there are sequences, all forgotten: the next one has its turn.
    for _ in range(20):
        next(model.stream("Once", **ask))
    gc.collect()
    assert len(model.generate("Once", max_tokens=5, **ask).tokens) == 5


def test_models_that_are_closed_or_forgotten_in_the_middle():
    ask = {"raw": True, "temperature": 0, "ignore_eos": True}
    model = alight.Model(PATH, threads=2)
    tokenizer = model.tokenizer
    wanted = "".join(model.stream("Once", max_tokens=20, **ask))
    # Forgotten: the stream keeps what it needs.
    stream = model.stream("Once", max_tokens=20, **ask)
    del model
    gc.collect()
    assert "".join(stream) == wanted
    assert "".join(alight.Model(PATH, threads=2).stream("Once", max_tokens=20, **ask)) == wanted
    # Closed: it ends with an error, also in a thread that waits.
    model = alight.Model(PATH, threads=2)
    stream = model.stream("Once", **ask)
    waiting, errors = model.stream("Once", **ask), []

    def wait():
        try:
            for _ in waiting:
                pass
        except alight.ClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    next(stream)
    model.close()
    model.close()
    thread.join(60)
    assert len(errors) == 1 and model.closed and "closed" in repr(model)
    for call in (lambda: list(stream), lambda: model.generate("x"), lambda: model.stream("x")):
        with pytest.raises(alight.ClosedError, match="the model has been closed"):
            call()
    assert list(stream) == [] and stream.completion.finish == "interrupted"
    assert tokenizer.decode(tokenizer.encode("still here")) == "still here"


def test_a_closed_model_takes_no_memory():
    told = in_process(
        """
import sys
from pathlib import Path
import alight
def mapped():
    return Path(sys.argv[1]).name in Path("/proc/self/maps").read_text()
with alight.Model(sys.argv[1], threads=2) as model:
    stream = model.stream("Once", raw=True, ignore_eos=True)
    next(stream)
    print(mapped())
print(mapped())
""",
        PATH,
    )
    assert told.split() == ["True", "False"]


INTERRUPTED = """
import os, signal, sys, threading, time
import alight
path, way = sys.argv[1:]
model = alight.Model(path, threads=2)
ask = {"raw": True, "seed": 1, "ignore_eos": True}
def press():
    print("pressed", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
def generate():
    model.generate("Once", **ask)
def stream():
    for i, _ in enumerate(model.stream("Once", **ask)): pass
def read():
    model.generate([1] * 4000, **ask)
timer = threading.Timer(0.5, press)
timer.start()
try:
    globals()[way]()
except KeyboardInterrupt:
    print("interrupted", flush=True)
else:
    print("not interrupted", flush=True)
print(len(model.generate("Once", max_tokens=5, **ask).tokens))
"""


@pytest.mark.parametrize("way", ["generate", "stream", "read"])
def test_ctrl_c_ends_an_answer(way):
    run = subprocess.run(with_signals([], sys.executable, "-c", INTERRUPTED, PATH, way), capture_output=True, text=True, timeout=300)
    assert run.stdout.split("\n")[:3] == ["pressed", "interrupted", "5"], run.stdout + run.stderr


def test_a_copy_of_the_process_says_that_it_has_no_threads():
    told = in_process(
        """
import os, sys
import alight
model = alight.Model(sys.argv[1], threads=1)
stream = model.stream("Once", raw=True)
child = os.fork()
if child == 0:
    for call in (lambda: model.generate("x"), lambda: next(stream)):
        try:
            call()
        except RuntimeError as error:
            print("forked" if "forked" in str(error) else error, flush=True)
    del model, stream
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(len(model.generate("x", raw=True, max_tokens=2, ignore_eos=True).tokens))
""",
        PATH,
    )
    assert told.split() == ["forked", "forked", "2"]


def test_a_copy_of_the_process_opens_a_model_of_its_own():
    """The thread of its model may be where the handle of the other one points to."""
    told = in_process(
        """
import os, sys
import alight
model = alight.Model(sys.argv[1], threads=1)
stream = model.stream("Once", raw=True)
child = os.fork()
if child == 0:
    own = alight.Model(sys.argv[1], threads=1)
    del model, stream
    print(len(own.generate("x", raw=True, max_tokens=2, ignore_eos=True).tokens), flush=True)
    own.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(len(model.generate("x", raw=True, max_tokens=3, ignore_eos=True).tokens))
""",
        PATH,
    )
    assert told.split() == ["2", "3"]


def test_a_process_that_ends_in_the_middle_ends_well():
    told = in_process(
        """
import sys, threading
import alight
model = alight.Model(sys.argv[1], threads=2)
ask = {"raw": True, "seed": 1, "ignore_eos": True}
stream = model.stream("Once", **ask)
threading.Thread(target=lambda: list(stream), daemon=True).start()
print(repr(next(model.stream("Once", **ask))))
""",
        PATH,
    )
    assert len(told) > len("''")


class LongByItsWord:
    """A sequence whose length is not what it says."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return 1 << 40

    def __getitem__(self, index):
        return self.items[index]


def test_the_length_that_a_sequence_claims_is_not_believed(model):
    tokenizer = model.tokenizer
    ids = tokenizer.encode("Once upon a time")
    claims = LongByItsWord(list(ids))
    assert tokenizer.decode(claims) == tokenizer.decode(ids)
    answers = [model.generate(prompt, max_tokens=2, temperature=0, stop=stop) for prompt, stop in ((ids, ["§"]), (claims, LongByItsWord(["§"])))]
    assert answers[0].tokens == answers[1].tokens
    for other in ({"a": 1}, 7):
        with pytest.raises(TypeError, match="expected a sequence, found"):
            tokenizer.decode(other)


def test_metadata_that_is_not_read_is_a_warning_or_an_error(tmp_path):
    def vocabulary(w, m):
        tiny_models.add_vocabulary(w, m)
        w.add_float32("llama.rope.scaling.alpha", 50.0)

    path = tiny_models.write(Tiny("llama", "llama"), tmp_path / "doubtful.gguf", vocabulary)
    named = 'metadata "llama.rope.scaling.alpha" is not read'
    with pytest.warns(RuntimeWarning, match=named), alight.Model(path, threads=1, context=64) as model:
        assert model.generate("a", max_tokens=1, ignore_eos=True).text is not None
    with pytest.raises(alight.FormatError, match=named):
        alight.Model(path, threads=1, context=64, strict=True)


def test_an_answer_has_the_adapters_that_it_names(tmp_path):
    from evidence.bench import adapters

    paths = {name: tmp_path / f"{name}.gguf" for name in ("one", "two")}
    for seed, path in enumerate(paths.values()):
        adapters.write(path, PATH, 4, "f16", seed, 0.2)
    with alight.Model(PATH, threads=2, context=256, lora=paths) as model:
        options = {"max_tokens": 8, "temperature": 0, "raw": True}
        base, one, two = (model.generate(QUESTION, lora=name, **options).tokens for name in (None, "one", "two"))
        assert base != one != two != base
        assert model.generate(QUESTION, lora={"one": 1}, **options).tokens == one
        assert model.generate(QUESTION, lora={"one": 0.0}, **options).tokens == base
        assert model.batch([QUESTION], lora={"one": 1.0, "two": 0.5}, **options)[0].tokens not in (base, one, two)
        with pytest.raises(alight.OptionError, match="no adapter 'three': expected one of one, two"):
            model.generate(QUESTION, lora="three")
        with pytest.raises(alight.OptionError, match="scale of 'one' is NaN"):
            model.generate(QUESTION, lora={"one": float("nan")})
        with pytest.raises(TypeError, match="lora: expected the name"):
            model.generate(QUESTION, lora=3)
    with pytest.raises(alight.FormatError, match="not an adapter, but a model"):
        alight.Model(PATH, lora={"base": PATH})
