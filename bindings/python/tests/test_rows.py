"""The classes of `alight.ray`, which work without Ray: a batch of rows in, and the rows with what was computed out."""

import json
import os
import subprocess
import sys
import threading
import time

import alight
import numpy as np
import pytest
from alight import ray as rows
from alight.ray import _command
from conftest import in_process
from evidence.lib import tiny_models, vector_clients
from evidence.lib.tiny_models import Tiny

PROMPTS = ["a stone", "the river and the market", "", "one"]


@pytest.fixture(scope="module")
def path(folder):
    return tiny_models.write(Tiny("rows", "llama"), folder / "rows.gguf")


@pytest.fixture(scope="module")
def generate(path):
    made = rows.Generate(path, key="id", defaults={"max_tokens": 6}, threads=1, sequences=3)
    yield made
    made.close()


def batch(prompts=PROMPTS, **more):
    columns = {"id": np.arange(len(prompts)), "prompt": np.array(prompts, object)}
    return columns | {name: np.array(values, object) for name, values in more.items()}


def listed(found, *names):
    return list(zip(*(found[name].tolist() for name in names)))


def test_rows_have_the_answers_of_the_command(generate, command, path):
    found = generate(batch(max_tokens=[1, 2, 3, 4]))
    lines = [{"prompt": text, "max_tokens": 6, "seed": rows.row_seed(i)} for i, text in enumerate(PROMPTS)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run([command, "batch", path, "-", "-t", "1", "--sequences", "1", "-q"], input=text, capture_output=True, text=True)
    expected = []
    for line in map(json.loads, done.stdout.splitlines()):
        if line["error"]:
            expected.append((None, None, 0, 0, line["error"]["code"]))
            continue
        choice, usage = line["response"]["body"]["choices"][0], line["response"]["body"]["usage"]
        expected.append((choice["text"], choice["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"], None))
    assert listed(found, "answer", "finish_reason", "prompt_tokens", "completion_tokens", "error_code") == expected
    assert found["seed"].tolist() == [rows.row_seed(i) for i in range(4)] and len({answer for answer, *_ in expected}) > 2
    # What was there stays, and a column that was not named is no field.
    assert found["max_tokens"].tolist() == [1, 2, 3, 4] and max(found["completion_tokens"]) == 6


def test_a_row_does_not_depend_on_the_batch(generate):
    whole = listed(generate(batch()), "answer", "seed", "error")
    for i in range(len(PROMPTS)):
        one = {name: column[i : i + 1] for name, column in batch().items()}
        assert listed(generate(one), "answer", "seed", "error") == [whole[i]]
    found = {}
    threads = [threading.Thread(target=lambda i=i: found.update({i: listed(generate(batch()), "answer", "seed", "error")})) for i in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert found == dict.fromkeys(range(3), whole)


def test_a_seed_follows_from_the_key():
    # It may never be another one: what was computed before would not be computed again.
    assert rows.row_seed("17") == rows.row_seed(17) == 630095352047830582
    assert len({rows.row_seed(key, seed) for key in range(1000) for seed in range(3)}) == 3000
    assert all(0 <= rows.row_seed(key) < 2**63 for key in range(1000))


def test_a_wrong_row_is_an_error_of_its_own(path):
    made = rows.Generate(path, fields={"how": "n", "limit": "max_tokens"}, threads=1)
    found = made(batch(["a stone", None, "a stone", "a stone"], how=[None, None, 2, None], limit=[3, 3, 3, "many"]))
    made.close()
    assert [error is None for error in found["error"]] == [True, False, False, False]
    assert found["error_code"].tolist() == [None, "invalid_request", "unsupported", "invalid_request"]
    assert not any(error.startswith("line") for error in found["error"][1:]), found["error"]
    assert [answer is None for answer in found["answer"]] == [False, True, True, True]


def test_requests_as_openai_has_them(path):
    made = rows.Generate(path, defaults={"max_tokens": 2}, threads=1)
    body = {"prompt": "a stone", "max_tokens": 4, "temperature": None}
    bodies = [body, json.dumps(body), "{", 7, {"prompt": "a stone"}]
    found = made({"custom_id": np.array(list("aabcd"), object), "body": np.array(bodies, object)})
    made.close()
    assert found["completion_tokens"].tolist() == [4, 4, 0, 0, 2] and found["answer"][0] == found["answer"][1]
    assert found["error_code"].tolist() == [None, None, "invalid_json", "invalid_json", None]


def test_conversations(model):
    made = rows.Chat(model.path, defaults={"temperature": 0, "max_tokens": 8}, threads=2)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    found = made({"messages": np.array([messages, None, []], object)})
    made.close()
    assert found["answer"][0] == model.chat(messages, temperature=0, max_tokens=8).text
    assert [error is None for error in found["error"]] == [True, False, False]


def test_a_process_that_is_killed_is_started_again(generate):
    prompts = PROMPTS * 30
    whole = listed(generate(batch(prompts)), "answer", "seed", "error")
    killed = 0
    for delay in (0.005, 0.01, 0.02, 0.04):
        generate(batch())
        run = generate._command._run
        killer = threading.Timer(delay, run.process.kill)
        killer.start()
        assert listed(generate(batch(prompts)), "answer", "seed", "error") == whole
        killer.join()
        run.process.wait()
        killed += generate._command._run is not run
    assert killed >= 3


SCRIPT = """#!/bin/sh
# `alight batch` that a certain line ends.
n=0
while read -r line; do
  n=$((n + 1))
  case "$line" in *deadly*) kill -9 $$;; esac
  printf '{"id": "batch_req_%s", "error": {"code": "seen", "message": "line %s: seen", "line": %s}}\\n' $n $n $n
done
"""


def test_a_line_that_ends_the_process_is_an_error_of_its_own(tmp_path, monkeypatch):
    program = tmp_path / "alight"
    program.write_text(SCRIPT)
    program.chmod(0o755)
    monkeypatch.setattr(_command, "program", lambda: program)
    made = rows.Generate("any.gguf", key="id")
    found = made(batch(["one", "deadly", "two", "deadly too", "three"]))
    assert found["error_code"].tolist() == ["seen", "process_ended", "seen", "process_ended", "seen"]
    assert found["error"][0] == "seen" and "signal 9, 3 times while this row alone was computed" in found["error"][1]
    # What never starts is an error of all of it.
    program.write_text("#!/bin/sh\necho 'the file is gone' >&2\nexit 1\n")
    if run := made._command._run:
        run.process.kill()
        run.process.wait()
    with pytest.raises(alight.AlightError, match="exit status 1: the file is gone"):
        made(batch(["one"]))
    made.close()
    with pytest.raises(alight.AlightError, match="the file is gone"):
        rows.Generate("any.gguf")


def test_what_cannot_work_is_said_at_the_start(path):
    for options, error, words in (
        ({"model": "/no/model.gguf"}, alight.AlightError, "does not exist"),
        ({"model": path, "cache_type": "q9"}, alight.OptionError, "possible values: f16, q8_0, q4r"),
        ({"model": path, "output": "x"}, alight.OptionError, "a job has none"),
    ):
        with pytest.raises(error, match=words):
            rows.Generate(**options)
    made = rows.Generate(path, threads=1)
    with pytest.raises(alight.OptionError, match="the rows have no column 'prompt', only 'text'"):
        made({"text": np.array(["a"], object)})
    with pytest.raises(alight.OptionError, match="have a column 'answer' already: prefix="):
        made({"prompt": np.array(["a"], object), "answer": np.array(["b"], object)})
    with pytest.raises(TypeError, match='expected a batch that is a dictionary of arrays or a pyarrow.Table, found list: batch_format="pyarrow"'):
        made([{"prompt": "a"}])
    made.close()


def test_texts_are_vectors(tmp_path):
    vectors, scores = vector_clients.models(tmp_path)
    embed = rows.Embed(vectors, threads=1)
    texts = ["the sky", "a cat", 7, "b " * 4000, None, "a dog"]
    found = embed({"text": np.array(texts, object)})
    good = [0, 1, 5]
    with alight.Model(vectors, threads=2) as model:
        assert found["embedding"][good].tobytes() == np.array(model.embed([texts[i] for i in good])).tobytes()
        assert found["prompt_tokens"][good].tolist() == model.embed([texts[i] for i in good], usage=True)[1]
        assert model.embed("a cat", usage=True)[1] == found["prompt_tokens"][1]
    assert np.isnan(found["embedding"][2:5]).all() and found["prompt_tokens"][2:5].tolist() == [0, 0, 0]
    assert found["error_code"].tolist() == [None, None, "invalid_request", "context_length_exceeded", "invalid_request", None]
    embed.close()
    rerank = rows.Rerank(scores, threads=1, prefix="by_")
    pairs = {"query": np.array(["q", "what", None, "q"], object), "document": np.array(["a", "b", "c", "d"], object)}
    found = rerank(pairs)
    with alight.Model(scores, threads=2, isa="scalar") as model:
        alone = [model.rerank(query, [document])[0] for query, document in (("q", "a"), ("what", "b"), ("q", "d"))]
        with pytest.raises(alight.OptionError, match="isa is 'sse': unknown instruction set"):
            alight.Model(scores, isa="sse")
    assert found["by_score"][[0, 1, 3]].tolist() == alone and np.isnan(found["by_score"][2])
    assert found["by_error_code"].tolist() == [None, None, "invalid_request", None]
    rerank.close()


def test_a_table_has_the_same_rows(generate):
    pa = pytest.importorskip("pyarrow")
    arrays = generate(batch())
    table = generate(pa.table({"id": range(len(PROMPTS)), "prompt": PROMPTS}))
    for name in ("answer", "seed", "error", "completion_tokens"):
        assert table[name].to_pylist() == arrays[name].tolist()
    assert str(table.schema.field("answer").type) == "string" and str(table.schema.field("seed").type) == "int64"


def test_ray_is_not_needed():
    assert in_process("import sys, alight.ray; print('ray' in sys.modules, alight.ray.Chat.__module__)") == "False alight.ray._texts"


def test_the_process_ends_with_the_worker(path):
    """An actor that is killed leaves no process."""
    code = "import sys, os; from alight.ray import Generate; g = Generate(sys.argv[1], threads=1); print(g._command._run.process.pid, flush=True); os.kill(os.getpid(), 9)"
    killed = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    for _ in range(200):
        try:
            os.kill(int(killed.stdout), 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("the process is still there")
