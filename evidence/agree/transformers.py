"""The same tiny models as `agree architectures`, against Hugging Face `transformers`: the definition of each family by
those who made it, in float64, where llama.cpp's reading of it is somebody's too. With --published or --folders, the way of
a model from Hugging Face's files through `alight convert` to log-probabilities, beside transformers on those files.

    PYTHON -m evidence agree transformers [ARCHITECTURE…]
    PYTHON -m evidence agree transformers --published [NAME…]  tiny models that transformers makes (evidence/lib/published.py);
                                                              config.json in the forms of transformers 5 and 4 has to give the
                                                              same file, and a changed value of it another answer, or an error
    PYTHON -m evidence agree transformers --folders FOLDER     models as Hugging Face has them, one in each folder there
                                                              (`make hf-models` makes some)

The weights go into transformers' own classes under transformers' own names (queries and keys of Llama with their rows
in the other order, Gemma's norms less one), so a mistake that we and llama.cpp share would show. The tolerance is
that of `agree architectures`, and so are the mistakes that must leave it.

Needs torch and transformers, which are in no requirements.txt, besides numpy and gguf:
    python3 -m venv VENV && VENV/bin/pip install torch transformers gguf
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from evidence.agree import architectures as agree
from evidence.lib import common, networks, published, tiny_models
from evidence.lib.lazy import lazily
from evidence.lib.tiny_models import Tiny
from evidence.make import hf_models

np = lazily("numpy")
torch = lazily("torch")
transformers = lazily("transformers")

CLASSES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma2": "Gemma2", "gemma3": "Gemma3",
           "granite": "Granite", "seed_oss": "SeedOss"}
# Of Granite's configuration, in the order of `Tiny.scales`.
SCALES = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
# The models of `make hf-models` have smaller weights: 0.0014 was the most, and a wrong pattern of windows 0.2.
CONVERTED = 0.005
# What llama.cpp does not read: YaRN's magnitude, said outright.
MORE = [
    (agree.other(agree.QWEN3, "yarn, magnitude", scaling=("yarn", 4.0, 64, 0.8), base=1e4),
     {"the usual magnitude": dict(scaling=agree.YARN)}),
    (agree.other(agree.LLAMA, "yarn, shorter", scaling=("yarn", 0.5, 64), base=1e4), {"not scaled": dict(scaling=None)}),
]


def rope(m: Tiny) -> dict:
    if m.factors:  # what tiny_models.tensors has
        return dict(rope_type="llama3", rope_theta=m.base, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                    original_max_position_embeddings=32)
    if m.scaling is None:
        return dict(rope_type="default", rope_theta=m.base)
    kind, factor, original, *magnitude = m.scaling
    found = dict(rope_type=kind, rope_theta=m.base, factor=factor)
    if original:
        found["original_max_position_embeddings"] = original
    if magnitude:
        found["attention_factor"] = magnitude[0]
    return found


def config(m: Tiny):
    given = dict(
        vocab_size=m.vocab, hidden_size=m.embd, intermediate_size=m.ff, num_hidden_layers=m.layers,
        num_attention_heads=m.heads, num_key_value_heads=m.kv_heads, head_dim=m.head_dim, rms_norm_eps=m.eps,
        max_position_embeddings=m.context, tie_word_embeddings=m.tied, rope_parameters=rope(m),
        attn_implementation="eager",
    )
    if m.scales is not None:
        given |= dict(zip(SCALES, m.scales))
    if m.arch in ("llama", "qwen3", "granite"):
        given |= dict(attention_bias="attn_output" in m.biases)
    if m.arch in ("llama", "granite"):
        given |= dict(mlp_bias="ffn_down" in m.biases)
    if m.arch in networks.GEMMAS:
        # The 27B of either family, by its number of layers.
        by_width = (m.arch, m.layers) in (("gemma2", 46), ("gemma3", 62))
        given |= dict(query_pre_attn_scalar=m.embd // m.heads if by_width else m.head_dim,
                      sliding_window=m.window or 4096)
    if m.arch == "gemma2":
        given |= dict(attn_logit_softcapping=m.attn_cap or 50.0, final_logit_softcapping=m.logit_cap or 30.0)
    if m.arch == "gemma3":
        local = dict(rope_type="default", rope_theta=m.local_base or 10000.0)
        given |= dict(rope_parameters=dict(full_attention=given["rope_parameters"], sliding_attention=local))
    text = "Text" if m.arch == "gemma3" else ""
    return getattr(transformers, f"{CLASSES[m.arch]}{text}Config")(**given)


def state(m: Tiny) -> dict:
    """The weights under transformers' names, as transformers wants them."""
    out = {}
    for name, weights in tiny_models.tensors(m):
        if name == "rope_freqs.weight":
            continue
        part, weights = name.split(".")[-2], weights.astype(np.float64)
        if m.arch in ("llama", "granite") and part in ("attn_q", "attn_k"):
            weights = networks.to_halves(weights, m.heads if part == "attn_q" else m.kv_heads)
        if m.arch in networks.GEMMAS and part.endswith("norm"):
            weights = weights - 1.0
        out[networks.hf_name(m.arch, name)] = torch.from_numpy(np.ascontiguousarray(weights))
    if m.tied:
        out["lm_head.weight"] = out["model.embed_tokens.weight"]
    return out


def theirs(m: Tiny, tokens: list[int]) -> np.ndarray:
    """Log-probabilities `[positions, vocabulary]` of the positions that are compared."""
    model = getattr(transformers, CLASSES[m.arch] + "ForCausalLM")(config(m)).double().eval()
    weights = state(m)
    biases = [name for name, _ in model.named_parameters() if name.endswith(".bias") and name not in weights]
    weights |= {name: torch.zeros_like(model.get_parameter(name)) for name in biases}
    model.load_state_dict(weights, strict=True)
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0].double()
    return torch.log_softmax(logits, dim=-1).numpy()[agree.FIRST : agree.LAST + 1]


def by_transformers(source: Path, tokens: list[int]) -> np.ndarray:
    """Log-probabilities `[positions, vocabulary]` of what a folder has, in float64."""
    kind = transformers.AutoConfig.from_pretrained(source)
    task = "ImageTextToText" if hasattr(kind, "text_config") else "CausalLM"
    model = getattr(transformers, f"AutoModelFor{task}").from_pretrained(source, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager")
    model = model.double().eval()  # what was quantised, too
    if kind.get_text_config().tie_word_embeddings:  # whatever else the files have
        model.get_output_embeddings().weight = model.get_input_embeddings().weight
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0].double()
    return torch.log_softmax(logits, dim=-1).numpy()[agree.FIRST : agree.LAST + 1]


def converted(args, report: agree.Report, source: Path, folder: Path, text: Path, limit: float = CONVERTED, left_out: float = 0.0) -> np.ndarray:
    """What becomes of a folder of Hugging Face's, beside transformers reading it, which is returned."""
    path = folder / "converted.gguf"
    agree.alight(args, "convert", source, "-o", path, "--force")
    ways = (("in a batch", agree.CONTEXT), ("one by one", 1))
    if "quantization_config" in json.loads((source / "config.json").read_text()):
        ways = ways[1:]  # a batch of quantised weights has activations of 8 bits
    found = {what: agree.ours(args, path, text, batch) for what, batch in ways}
    tokens = found["one by one"][0]
    if (source / "tokenizer.json").is_file():
        # What goes around a text is the model's matter.
        cut = transformers.AutoTokenizer.from_pretrained(source).encode(text.read_text(), add_special_tokens=False)
        same = tokens[1:] == cut[: len(tokens) - 1] or tokens == cut[: len(tokens)]
        report.add(same, f"{source.name}: the text is cut as by its own tokenizer")
    exact = by_transformers(source, tokens)
    for what, (_, ours) in found.items():
        report.within(source.name, what, agree.apart(exact, ours, left_out)[0], limit)
    return exact


def publish(args, report: agree.Report, case: published.Published, folder: Path, text: Path) -> None:
    """A tiny model as its makers would publish it, and the same with a value of its configuration changed."""
    source = folder / "new" / case.name
    published.write(case, source)
    published.tokenizer(case, source, hf_models.tokenizer(case.kind))
    left_out = 0.1 if case.experts else 0.0
    exact = converted(args, report, source, folder, text, agree.TOLERANCE, left_out)
    said = json.loads((source / "config.json").read_text())
    other = folder / "other" / case.name
    shutil.rmtree(other.parent, ignore_errors=True)
    shutil.copytree(source, other)

    def again(said: dict) -> Path:
        (other / "config.json").write_text(json.dumps(said))
        path = folder / "other.gguf"
        agree.alight(args, "convert", other, "-o", path, "--force")
        return path

    if case.old:
        old = json.loads(json.dumps(said))
        for part in [old, *([old["text_config"]] if "text_config" in old else [])]:
            hf_models.as_it_was(part)
        same = again(old).read_bytes() == (folder / "converted.gguf").read_bytes()
        report.add(same, f"{case.name}: config.json of transformers 4 gives the same file")
    together = folder / "together" / case.name
    shutil.rmtree(together.parent, ignore_errors=True)
    shutil.copytree(source, together)
    if published.joined(together):
        path = folder / "together.gguf"
        agree.alight(args, "convert", together, "-o", path, "--force")
        same = path.read_bytes() == (folder / "converted.gguf").read_bytes()
        report.add(same, f"{case.name}: joined experts give the same file")
    for what, changes in case.mistakes.items():
        try:
            path = again(published.changed(said, changes))
        except agree.Trouble as trouble:
            key = next(iter(changes)).split(".")[-1]
            report.add(key in str(trouble), f"{case.name}: with a mistake: {what}: refused: {trouble}")
            continue
        _, found = agree.ours(args, path, text, agree.CONTEXT)
        report.within(case.name, f"with a mistake: {what}", agree.apart(exact, found, left_out)[0], agree.CONTROL, above=True)


def add_arguments(parser) -> None:
    parser.add_argument("names", nargs="*", help="architectures (default: all)")
    parser.add_argument("--folders", type=Path, help="folder of folders with config.json")
    parser.add_argument("--published", action="store_true", help="what transformers publishes, converted; names are those of these cases")
    parser.add_argument("--seed", type=int, default=1, help="of the weights and the texts")
    parser.add_argument("-q", "--quiet", action="store_true", help="only what fails, and the sum")
    common.add_arguments(parser, threads=1)


def run(args) -> int:
    args.step = 1
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    report = agree.Report(args.quiet)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        text = folder / "text.txt"
        text.write_text(tiny_models.text(200, args.seed))
        for source in sorted(args.folders.glob("*/config.json")) if args.folders else []:
            try:
                converted(args, report, source.parent, folder, text)
            except agree.Trouble as trouble:
                report.add(False, f"{source.parent.name}: {trouble}")
        for case in published.CASES if args.published else []:
            if args.names and case.name not in args.names:
                continue
            try:
                publish(args, report, case, folder, text)
            except agree.Trouble as trouble:
                report.add(False, f"{case.name}: {trouble}")
        for m, controls in [] if args.folders or args.published else [*agree.CASES, *MORE]:
            # Mixtures of experts are compared with llama.cpp alone so far.
            if args.names and m.arch not in args.names or m.arch not in CLASSES or m.experts:
                continue
            m = replace(m, seed=args.seed)
            agree.compare(args, report, m, controls, folder, text, lambda _, tokens, m=m: theirs(m, tokens))
    print(f"transformers {transformers.__version__}: {report.passed} passed, {report.failed} failed")
    return report.status()
