"""Greedy continuations of `alight run` against llama.cpp's, on both real models.

Every prompt is continued by 32 tokens and compared with what llama.cpp chose on the same file. The two must be
identical, or part at a step where the choice is close; after a parting the texts differ, so what follows is not
compared. A choice is close in one of two senses:
  close   llama.cpp's own log-probabilities of the two tokens are within 0.15 (SmolLM2) or 0.6 (Gemma 3, where
          llama.cpp's server and its completion tool part from each other at gaps up to that);
  exact   exact arithmetic on the same weights puts our token first or within 0.2 of the first. Exact is: the file
          dequantised to F32, run by llama.cpp with an F32 cache and without flash attention.
Then ours is compared with the greedy continuation by exact arithmetic in the same way (limit 0.2: a prompt is taken
in with 8-bit activations), and how often either engine follows it to the end is printed.

llama.cpp's side is in tests/data/greedy/. `--live N` runs llama.cpp itself (through xllamacpp) on N prompts of each
model and checks that it still says so; `--record` writes the files anew (the F32 files are made if
they are not there, 1.6 GB).
"""

import json
import time
from pathlib import Path

from evidence.lib import common, gguf_files, peers, process
from evidence.lib.llama import CANDIDATES, CONTEXT, KEEP, Llama, pruned

TOKENS = 32
# Largest gap at which ours and llama.cpp's may part, ours and the exact one, and the tokens that end an answer.
LIMIT = {"smollm2": 0.15, "gemma3": 0.6}
EXACT_LIMIT = 0.2
ENDS = {"smollm2": {0, 2}, "gemma3": {1, 106}}
END = -1  # stands for any of them

FACTS = [
    ("harbour", "is dredged every spring", 14), ("library", "keeps the maps of the old town", 29),
    ("bridge", "was rebuilt after the flood", 31), ("market", "opens before sunrise", 47),
    ("mill", "grinds rye and barley", 58), ("tower", "has a clock with one hand", 62),
    ("garden", "belongs to the school", 77), ("station", "sells tickets until nine", 83),
]


def long_prompt(lines: int) -> str:
    """Several hundred tokens: the prompt is computed in batches, and leaves Gemma's window of 512."""
    said = [
        f"{i}. The {FACTS[i % 8][0]} on street {FACTS[i % 8][2] + i} {FACTS[i % 8][1]}." for i in range(1, lines + 1)
    ]
    return "Notes about a small town.\n" + "\n".join(said) + "\nIn short, the town"


PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village at the foot of a mountain,",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++) {\n",
    "fn main() {\n    let numbers: Vec<u32> = (1..=10).collect();\n",
    "SELECT name, COUNT(*) FROM orders",
    "{\"name\": \"Ada\", \"born\": 1815, \"works\": [",
    "| Planet | Radius (km) |\n|---|---|\n| Mercury | 2440 |\n| Venus |",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "Q: What is 17 + 25?\nA:",
    "To make bread you need flour, water, salt and",
    "The three laws of thermodynamics state that",
    "Dear Sir or Madam,\n\nI am writing to",
    "Il était une fois une petite fille qui",
    "Die Hauptstadt von Deutschland ist",
    "La fotosíntesis es el proceso por el cual",
    "Москва — столица",
    "日本の首都は",
    "中国的首都是",
    "عاصمة مصر هي",
    "The weather today is 🌧️ and tomorrow it will be ☀️",
    "   indented\t\ttext  with   runs of    spaces\n\n\n\nand blank lines",
    "http://example.com/index.html?query=test&page=",
    "A",
    "To be, or not to be, that is the question:",
    "Water boils at 100 degrees Celsius, which is",
    long_prompt(12),
    long_prompt(40),
]
# One conversation in each model's own format, with its special tokens.
CHAT = {
    "smollm2": "<|im_start|>user\nName three colours of the rainbow.<|im_end|>\n<|im_start|>assistant\n",
    "gemma3": "<start_of_turn>user\nName three colours of the rainbow.<end_of_turn>\n<start_of_turn>model\n",
}


def prompts(name: str) -> list[str]:
    return PROMPTS + [CHAT[name]]


def continued(llama: Llama, prompt: str, ends: set[int]) -> dict:
    """llama.cpp's greedy continuation, and the candidates at each step."""
    answer = llama.complete(prompt, TOKENS)
    tokens = answer["__verbose"]["tokens"]
    # The server lists the candidates of a step only if the text so far ends with a whole character.
    listed = [[s["id"], s["top_logprobs"]] for s in answer["choices"][0]["logprobs"]["content"]]
    if len(listed) == len(tokens):
        top = [pruned(candidates) for _, candidates in listed]
    else:
        top = llama.along(prompt, tokens)
    found = [END if t in ends else t for t in tokens]
    if answer["choices"][0]["finish_reason"] == "stop" and END not in found:
        raise SystemExit(f"llama.cpp stopped without an end token after {prompt!r}")
    return {"prompt": prompt, "raw": tokens, "tokens": found, "top": top}


def record(args, name: str, path: Path, file: Path) -> None:
    """Runs llama.cpp on the file and on its F32 form, and writes what it said."""
    import importlib.metadata

    exact = args.exact / f"{name}-f32.gguf"
    if not exact.exists():
        common.say(f"{name}: dequantising to {exact}")
        args.exact.mkdir(parents=True, exist_ok=True)
        gguf_files.dequantise(path, exact)
    ends = ENDS[name]
    with Llama(path) as llama:
        answers = [continued(llama, prompt, ends) for prompt in prompts(name)]
    with Llama(exact, exact=True) as llama:
        for answer in answers:
            answer["exact_here"] = llama.along(answer["prompt"], answer.pop("raw"))
            true = continued(llama, answer["prompt"], ends)
            answer["exact"] = {"tokens": true["tokens"], "top": true["top"]}
    made = f"xllamacpp {importlib.metadata.version('xllamacpp')}, {TOKENS} greedy tokens, {path.name}"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(answer, ensure_ascii=False, separators=(",", ":")) for answer in answers]
    file.write_text(f'{{"made_by": {json.dumps(made)}, "answers": [\n' + ",\n".join(lines) + "\n]}\n")
    common.say(f"{file}: {len(lines)} answers")


def alight(args, path: Path, prompt: str) -> tuple[list[int], str]:
    """Our continuation; or what went wrong."""
    done = process.run(peers.alight_run(args, path, prompt, "--parse-special", "--json", tokens=TOKENS, context=CONTEXT), timeout=300)
    if done.returncode != 0:
        return [], f"exit status {done.returncode}: {done.stderr.strip()}"
    answer = json.loads(done.stdout)
    return answer["tokens"] + ([END] if answer["finish"] == "stop" else []), ""


def gap(top: list, token: int, ends: set[int]) -> float:
    """How far below the best `token` is; infinite if it was not recorded."""
    wanted = ends if token == END else {token}
    return min((top[0][1] - logprob for candidate, logprob in top if candidate in wanted), default=float("inf"))


def words(below: float) -> str:
    return f"more than {KEEP} or beyond the best {CANDIDATES}," if below == float("inf") else f"{below:.3f}"


def compare(ours: list[int], theirs: dict, ends: set[int], limit: float) -> tuple[str, str]:
    """('same' | 'close' | 'exact' | 'wrong', what to say about it)."""
    for step, want in enumerate(theirs["tokens"]):
        if step >= len(ours):
            return "wrong", f"ours ends after {len(ours)} tokens"
        got = ours[step]
        if got == want:
            continue
        below = gap(theirs["top"][step], got, ends)
        why = f"step {step}: {got} instead of {want}, {words(below)} below it"
        if below <= limit:
            return "close", why
        if "exact_here" in theirs:
            below = gap(theirs["exact_here"][step], got, ends)
            why += f", in exact arithmetic {words(below)} below the best"
            if below <= EXACT_LIMIT:
                return "exact", why
        return "wrong", why
    if len(ours) > len(theirs["tokens"]):
        return "wrong", f"theirs ended after {len(theirs['tokens'])} tokens, ours did not"
    return "same", ""


def show(prompt: str) -> str:
    text = json.dumps(prompt, ensure_ascii=False)
    return text if len(text) < 48 else text[:44] + "…\""


def add_arguments(parser) -> None:
    parser.add_argument("--model", action="append", choices=list(LIMIT), help="default: both")
    parser.add_argument("--live", type=int, default=0, metavar="N", help="also run llama.cpp on N prompts per model")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="ask every N-th prompt")
    parser.add_argument("--record", action="store_true", help="run llama.cpp on all prompts and write the files")
    parser.add_argument("--exact", type=Path, default=common.ROOT / "target/accuracy",
                        help="where the F32 files are or go (--record)")
    parser.add_argument("--data", type=Path, default=common.ROOT / "tests/data/greedy")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not list the partings that are fine")
    common.add_arguments(parser)


def run(args) -> int:

    counts = {"same": 0, "close": 0, "exact": 0, "wrong": 0}
    results, follow = [], {}
    for name in args.model or LIMIT:
        path = common.model_path(name, args.models)
        file = args.data / f"{name}.json"
        ends, limit = ENDS[name], LIMIT[name]
        if args.record:
            record(args, name, path, file)
            continue
        golden = {a["prompt"]: a for a in json.loads(file.read_text())["answers"]}

        def check(who, prompt, tokens, theirs, limit, trouble=""):
            verdict, why = ("wrong", trouble) if trouble else compare(tokens, theirs, ends, limit)
            counts[verdict] += 1
            results.append({"model": name, "who": who, "prompt": prompt, "verdict": verdict, "why": why})
            if verdict == "wrong" or verdict != "same" and not args.quiet:
                common.say(f"{name}: {who}: {verdict}: {show(prompt)}: {why}")
            return verdict

        if args.live:
            # Spread over the list, so that the scripts and the long prompts are among them.
            chosen = prompts(name)[:: max(1, len(prompts(name)) // args.live)][: args.live]
            start = time.monotonic()
            with Llama(path) as llama:
                answers = [(p, continued(llama, p, ends)) for p in chosen]
            for prompt, answer in answers:
                check("llama.cpp now and recorded", prompt, answer["tokens"], golden[prompt], limit)
            common.say(f"{name}: llama.cpp ran {len(chosen)} prompts in {time.monotonic() - start:.1f} s")
        follow[name] = {"alight": 0, "llama.cpp": 0, "prompts": len(prompts(name)[:: args.every])}
        for prompt in prompts(name)[:: args.every]:
            if prompt not in golden:
                raise SystemExit(f"{file} lacks a prompt: make it again with --record")
            theirs = golden[prompt]
            tokens, trouble = alight(args, path, prompt)
            check("alight and llama.cpp", prompt, tokens, theirs, limit, trouble)
            check("alight and exact", prompt, tokens, theirs["exact"], EXACT_LIMIT, trouble)
            follow[name]["alight"] += tokens == theirs["exact"]["tokens"]
            follow[name]["llama.cpp"] += theirs["tokens"] == theirs["exact"]["tokens"]
    if args.record:
        return 0
    passed = counts["same"] + counts["close"] + counts["exact"]
    if not common.as_json(args, {"results": results, "counts": counts, "follows_exact": follow}):
        print(f"greedy: {counts['same']} identical, {counts['close']} part where the choice is close, "
              f"{counts['exact']} where exact arithmetic sides with ours")
        for name, n in follow.items():
            print(f"{name}: of {n['prompts']} exact continuations alight follows {n['alight']} to the end, "
                  f"llama.cpp {n['llama.cpp']}")
        print(f"greedy: {passed} passed, {counts['wrong']} failed")
    return 1 if counts["wrong"] else 0
