"""Logits, embeddings and batches of the native engine, beside those of the server, of llama.cpp and of single calls."""

import json
import subprocess
import sys
import threading
import urllib.request

import alight
import numpy as np
import pytest
from conftest import PATH, ROOT, in_process
from evidence.lib import vector_clients
from test_generate import QUESTION

TEXT = "The capital of France is"


@pytest.fixture(scope="module")
def serve(command):
    """Asks `alight serve`."""
    server = subprocess.Popen([command, "serve", PATH, "--port", "0", "--no-cache", "-t", "2"], stderr=subprocess.PIPE, text=True)
    address = next(line for line in server.stderr if line.startswith("listening on ")).split()[-1]
    drain = threading.Thread(target=server.stderr.read)
    drain.start()

    def ask(path, **body):
        request = urllib.request.Request(f"{address}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    yield ask
    server.terminate()
    server.wait()
    drain.join()


def test_the_next_token_follows_from_the_logits(model):
    for text in (TEXT, "1, 1, 2, 3, 5,", "日本の首都は"):
        logits = model.logits(text)
        assert logits.shape == (model.vocab_size,) and len(logits) == model.vocab_size
        chosen = model.generate(text, raw=True, temperature=0, max_tokens=1, ignore_eos=True).tokens
        assert [int(np.argmax(logits))] == chosen
        assert logits.tolist() == np.asarray(logits).tolist() and logits[-1] == logits.tolist()[-1]
        tokens = model.tokenizer.prompt(text)
        assert bytes(model.logits(tokens)) == bytes(logits)
    # A conversation goes through the template.
    messages = [{"role": "user", "content": QUESTION}]
    assert bytes(model.logits(messages)) == bytes(model.logits(model.tokenizer.chat(messages)))


def test_logits_of_each_token_are_those_of_each_beginning(model):
    tokens = model.tokenizer.prompt("Water boils at 100 degrees Celsius, which is")
    every = model.logits(tokens, all=True)
    assert every.shape == (len(tokens), model.vocab_size)
    rows = np.asarray(every)
    for n in range(1, len(tokens) + 1):
        one = model.logits(tokens[:n])
        assert bytes(one) == rows[n - 1].tobytes() == bytes(every[n - 1]), n
    with alight.Model(PATH, threads=1, sequences=1, prompt_cache=0, speculate="off") as other:
        assert bytes(other.logits(tokens, all=True)) == bytes(every)


def test_logits_beside_those_of_llama_cpp(model):
    told = json.loads((ROOT / "tests/data/greedy/smollm2.json").read_text())["answers"]
    for one in told[:10]:
        logits = np.asarray(model.logits(one["prompt"], parse_special=True), np.float64)
        likely = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        for token, value in one["top"][0]:
            assert abs(likely[token] - value) < 0.35, (one["prompt"], token)


def test_logits_are_those_that_the_server_tells(model, serve):
    told = serve("/v1/completions", prompt=TEXT, max_tokens=1, temperature=0, logprobs=3)
    top = told["choices"][0]["logprobs"]["top_logprobs"][0]
    logits = np.asarray(model.logits(TEXT), np.float64)
    likely = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    best = np.argsort(-likely)[:3]
    assert [model.detokenize([int(token)]) for token in best] == list(top)
    assert np.allclose(likely[best], list(top.values()), atol=1e-5)


def test_likelihoods_are_those_that_the_server_tells(model, serve):
    told = serve("/v1/completions", prompt=TEXT, max_tokens=8, temperature=0.9, seed=3, logprobs=4)["choices"][0]["logprobs"]
    answer = model.generate(TEXT, raw=True, max_tokens=8, temperature=0.9, seed=3, logprobs=4)
    assert [np.float32(one["logprob"]) for one in answer.logprobs] == [np.float32(one) for one in told["token_logprobs"]]
    for one, top in zip(answer.logprobs, told["top_logprobs"], strict=True):
        assert [model.detokenize([token]) for token in one["top"]][:4] == list(top)[:4]
        assert [np.float32(x) for x in one["top"].values()] == [np.float32(x) for x in list(top.values())[:4]]
    # They are of the model's logits, which the first token follows from.
    logits = np.asarray(model.logits(TEXT), np.float64)
    likely = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    assert abs(likely[answer.tokens[0]] - answer.logprobs[0]["logprob"]) < 1e-5
    stream = model.stream(TEXT, raw=True, max_tokens=8, temperature=0.9, seed=3, logprobs=4)
    assert "".join(stream) == answer.text and stream.completion.logprobs == answer.logprobs
    assert [one["top"] for one in model.generate(TEXT, max_tokens=2, logprobs=0).logprobs] == [{}, {}]
    assert model.generate(TEXT, max_tokens=1).logprobs is None
    with pytest.raises(alight.OptionError, match="logprobs is 1001, expected 1000 at most"):
        model.generate(TEXT, logprobs=1001)


def test_embeddings_are_those_of_the_server(model, serve):
    texts = ["The sky is blue.", "日本", "A longer text, which has some more words than the others have."]
    for pooling in ("mean", "last"):
        told = serve("/v1/embeddings", input=texts, pooling=pooling, encoding_format="float")["data"]
        ours = model.embed(texts, pooling=pooling)
        assert ours.shape == (3, model.hidden_size)
        assert np.array_equal(np.asarray(ours), np.array([one["embedding"] for one in told], np.float32))
        for text, row in zip(texts, ours):
            assert bytes(model.embed(text, pooling=pooling)) == bytes(row)
            assert bytes(model.embed(model.tokenizer.prompt(text), pooling=pooling)) == bytes(row)
        assert np.allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-6)
    plain = model.embed(texts[0], normalize=False)
    assert plain.shape == (model.hidden_size,) and np.linalg.norm(plain) > 2
    assert np.allclose(np.asarray(plain) / np.linalg.norm(plain), model.embed(texts[0]), atol=1e-6)
    assert model.embed([]).shape == (0, model.hidden_size)


def test_scores_are_those_of_the_command(command, tmp_path):
    vectors, path = vector_clients.models(tmp_path)
    query, documents = vector_clients.QUERY, vector_clients.TEXTS

    def scores_by_command(*more):
        lines = "".join(json.dumps(text) + "\n" for text in documents)
        done = subprocess.run([command, "rerank", path, query, "--json", *more], input=lines, capture_output=True, text=True, check=True)
        scores = {one["index"]: one["relevance_score"] for one in map(json.loads, done.stdout.splitlines())}
        return [scores[i] for i in range(len(documents))]

    with alight.Model(path, threads=2) as model:
        shares, raw = model.rerank(query, documents), model.rerank(query, documents, raw=True)
        assert shares == scores_by_command() and raw == scores_by_command("--raw") and len(set(raw)) == len(documents)
        assert np.allclose(shares, 1 / (1 + np.exp(-np.array(raw))), atol=1e-15)
        assert model.rerank(query, documents[1:2]) == shares[1:2] and model.rerank(query, []) == []
        # Of a pair that is too long the document is shortened, or the call refused.
        assert len(model.rerank("a", ["b " * 4000])) == 1
        with pytest.raises(alight.AlightError, match="the model reads at most"):
            model.rerank("a", ["b " * 4000], truncate=False)
    with alight.Model(vectors, threads=2) as model, pytest.raises(alight.AlightError, match="no classifier"):
        model.rerank(query, documents)


def test_a_batch_has_the_answers_of_single_calls(model):
    prompts = [QUESTION, "Name a colour.", model.tokenizer.prompt("Once upon a time"), [{"role": "user", "content": "Say yes."}]]
    prompts += [f"Count to {n}." for n in range(8)]
    options = {"seed": 11, "max_tokens": 12}
    alone = [model.generate(prompt, **options) for prompt in prompts]
    together = model.batch(prompts, **options)
    for one, other in zip(alone, together, strict=True):
        assert (one.text, one.tokens, one.finish, one.seed) == (other.text, other.tokens, other.finish, other.seed)
    # Without a seed each has one of its own.
    assert len({one.seed for one in model.batch(["a"] * 5, max_tokens=1)}) == 5
    assert model.batch(iter(())) == []


def test_errors(model):
    for call, error, said in [
        (lambda: model.batch("one text"), TypeError, "found one text"),
        (lambda: model.batch([1, 2]), TypeError, "a prompt is a text"),
        (lambda: model.batch(["fine", [1] * 5000], max_tokens=1), alight.ContextFullError, "4096 positions"),
        (lambda: model.batch(["fine", ""], raw=True), alight.PromptError, "no tokens"),
        (lambda: model.logits(""), alight.PromptError, "no tokens"),
        (lambda: model.logits([]), alight.PromptError, "empty"),
        (lambda: model.embed("x", pooling="max"), alight.OptionError, "pooling is max, expected mean, cls or last"),
        (lambda: model.embed(["x", [10**6]]), alight.PromptError, "token id 1000000"),
    ]:
        with pytest.raises(error, match=said):
            call()
    array = model.logits("x")
    for at in (model.vocab_size, -model.vocab_size - 1):
        with pytest.raises(IndexError):
            array[at]


def test_numbers_outlive_the_model_and_need_no_numpy():
    told = in_process(
        """
import sys
sys.modules["numpy"] = None
import alight
model = alight.Model(sys.argv[1], threads=2)
logits = model.logits([1, 2, 3], all=True)
vector = model.embed("x")
model.close()
view = memoryview(logits)
assert view.readonly and view.format == "f" and view.shape == (3, 49152) and view.c_contiguous
row = logits[2]
del logits
assert row.tolist() == view.tolist()[2] and row[5] == view[2, 5]
assert len(vector.tolist()) == 576 and abs(sum(x * x for x in vector.tolist()) - 1) < 1e-5
try:
    vector.numpy()
except ImportError:
    print("no numpy")
print("jax" in sys.modules, "ml_dtypes" in sys.modules)
""",
        PATH,
    )
    assert told.split() == ["no", "numpy", "False", "False"]
    assert sys.modules.get("numpy") is np
