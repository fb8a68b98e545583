"""LoRA adapters: what becomes of PEFT's folders through `alight convert` and `alight merge`, beside PEFT's own merged weights, tensor by tensor.

    PYTHON -m evidence agree adapters [NAME…]

`transformers` makes a tiny base with random weights, PEFT an adapter of it with random factors. PEFT merges them in float64, and the merged model is converted
like any other: those are the weights that the base's, with the converted adapter added in float64, have to be, and those of `alight merge`, whose answers
are beside those of PEFT, not merged. NAME is that of a base. Mistakes that have to be seen: a permutation, a root, a pattern or a magnitude that is forgotten, experts' columns in another order.

Needs torch, transformers, peft, safetensors and gguf, which are in no requirements.txt:
    python3 -m venv VENV && VENV/bin/pip install torch transformers peft gguf sentencepiece
"""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from evidence.agree import architectures as agree
from evidence.lib import common, gguf_files, networks, published, tiny_models
from evidence.lib.lazy import lazily
from evidence.lib.published import EXPERTS, Published, rope
from evidence.make import hf_models

np = lazily("numpy")
torch = lazily("torch")
transformers = lazily("transformers")
peft = lazily("peft")
safetensors = lazily("safetensors.torch")

# Millionths of the largest element of a tensor. Both are rounded to f32 once; `merge` computes in f32.
EXACT, MERGED, MISTAKE = 0.3, 2.0, 1000.0

LLAMA = Published("llama", "Llama", rope())
QWEN2 = Published("qwen2", "Qwen2", rope())
GEMMA3 = Published("gemma3", "Gemma3Text", dict(head_dim=32, query_pre_attn_scalar=32, tie_word_embeddings=True))
TIED = Published("llama-tied", "Llama", dict(tie_word_embeddings=True, **rope()))
EXPERTS_QWEN3 = Published("qwen3_moe", "Qwen3Moe", dict(EXPERTS, num_experts=7, head_dim=40, norm_topk_prob=True, **rope()))

PATTERNS = dict(rank_pattern={"q_proj": 3, r"layers\.1\.mlp\.down_proj": 8, "model.layers.2.self_attn.o_proj": 1},
                alpha_pattern={"k_proj": 30, "layers.0.mlp.up_proj": 2})
TOGETHER = dict(target_parameters=["mlp.experts.down_proj", "mlp.experts.gate_up_proj"])


@dataclass(frozen=True)
class Case:
    """An adapter of a base: what PEFT is configured with, and mistakes that must be seen, by what they are."""

    what: str
    base: Published
    config: dict = field(default_factory=dict)
    mistakes: tuple = ()
    # A word of the error, if it cannot be converted.
    refused: str = ""
    # Of the folder, after PEFT has written it.
    change: Callable = lambda _: None


def halves(found: dict) -> dict:
    """The rows of queries and keys as the source has them."""
    def undone(name: str, array):
        part = name.split(".")[2] if name.startswith("blk.") else ""
        heads = {"attn_q": 4, "attn_k": 2}.get(part)
        return networks.to_halves(array, heads) if heads and name.endswith(".lora_b") else array
    return {name: undone(name, array) for name, array in found.items()}


def without(suffix: str) -> Callable:
    return lambda found: {name: array for name, array in found.items() if not name.endswith(suffix)}


def said(**values) -> Callable:
    """A folder whose configuration has other values."""
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return change


def other_columns(folder: Path) -> None:
    """The columns of all experts one after the other, and not in turn."""
    path = folder / "adapter_model.safetensors"
    weights = safetensors.load_file(path)
    for name, array in weights.items():
        if ".experts." in name and ".lora_B." in name:
            weights[name] = array.reshape(array.shape[0], -1, 7).transpose(1, 2).reshape(array.shape).contiguous()
    safetensors.save_file(weights, path)


EVERYTHING = "everything"
READ = "as read"
FOLDER = "of the folder"
ROOT = (FOLDER, "the root is forgotten", said(use_rslora=False))
PERMUTED = (READ, "the permutation is forgotten", halves)

CASES = [
    Case("plain", LLAMA, mistakes=(PERMUTED, (FOLDER, "another alpha", said(lora_alpha=9)))),
    Case("rsLoRA", LLAMA, dict(use_rslora=True), mistakes=(ROOT,)),
    Case("patterns", LLAMA, PATTERNS, mistakes=((FOLDER, "alphas are forgotten", said(alpha_pattern={})),)),
    Case("patterns and rsLoRA", LLAMA, dict(PATTERNS, use_rslora=True), mistakes=(ROOT,)),
    Case("DoRA", LLAMA, dict(PATTERNS, use_dora=True), mistakes=((READ, "magnitudes are left out", without(".lora_magnitude")),)),
    Case("bias of the second factor", QWEN2, dict(lora_bias=True, target_modules=["q_proj", "k_proj", "v_proj"]), mistakes=((READ, "biases are left out", without(".lora_bias")),)),
    Case("biases of the base", QWEN2, dict(bias="all"), mistakes=((READ, "biases are left out", without(".lora_override")),)),
    Case("biases of adapted modules", QWEN2, dict(bias="lora_only")),
    Case("DoRA and biases of the base", QWEN2, dict(bias="all", use_dora=True)),
    Case("full tensors", LLAMA, dict(modules_to_save=["lm_head", "input_layernorm", "embed_tokens"]), mistakes=((READ, "they are left out", without(".lora_override")),)),
    Case("embedding and output", LLAMA, dict(target_modules=["embed_tokens", "lm_head", "v_proj"])),
    Case("embedding of a tied model", TIED, dict(target_modules=["embed_tokens", "v_proj"])),
    Case("output of a tied model", TIED, dict(target_modules=["lm_head", "v_proj"]), refused="tie_word_embeddings"),
    Case("norms that are stored less one", GEMMA3, dict(modules_to_save=["q_norm", "input_layernorm"])),
    Case("DoRA", GEMMA3, dict(use_dora=True)),
    Case("rows of an embedding", LLAMA, dict(trainable_token_indices=[1, 5]), refused="trainable_token_indices"),
    Case("a start from singular values", LLAMA, refused="init_lora_weights", change=said(init_lora_weights="pissa_niter_16")),
    Case("repeated layers", LLAMA, refused="layer_replication", change=said(layer_replication=[[0, 2], [1, 3]])),
    Case("experts", EXPERTS_QWEN3, TOGETHER, mistakes=((FOLDER, "other columns", other_columns),)),
    Case("experts and rsLoRA", EXPERTS_QWEN3, dict(TOGETHER, use_rslora=True, alpha_pattern={"mlp.experts.down_proj": 30}), mistakes=(ROOT,)),
]
# Of every other base, all that PEFT can adapt.
OTHERS = [case for case in published.CASES if not case.whole and case.name not in {other.base.name for other in CASES}]


def fill(model, seed: int) -> None:
    """Random numbers for everything that is trained, which f32 can hold."""
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if not weights.requires_grad:
                continue
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)
            noise = torch.randn(weights.shape, generator=generator, dtype=torch.float64)
            if "lora_magnitude" in name:
                weights.mul_(1.0 + 0.3 * noise)
            elif "lora_A" in name or "lora_embedding_A" in name:
                weights.copy_(noise)
            elif "lora_B" in name or "lora_embedding_B" in name:
                weights.copy_(0.006 * noise)
            else:
                weights.add_(0.2 * noise)
            weights.copy_(weights.float().double())


def arrays(path: Path) -> tuple[dict, dict]:
    """The tensors of a file in float64, and its metadata."""
    reader = gguf_files.quick_reader(path)
    found = {tensor.name: np.array(tensor.data).astype(np.float64) for tensor in reader.tensors}
    return found, {name: field.contents() for name, field in reader.fields.items()}


def added(base: dict, adapter: dict, alpha: float) -> dict:
    """The base's weights with an adapter's changes, by the definition of the format."""
    merged = dict(base)
    for name, b in adapter.items():
        of, _, kind = name.rpartition(".")
        if kind == "lora_override":
            merged[of] = b
        if kind != "lora_b":
            continue
        a, w = adapter[f"{of}.lora_a"], base[of]
        scale = alpha / b.shape[-1]
        if of == "token_embd.weight":
            merged[of] = w + scale * a @ b.T
            if "output.weight" not in base:
                merged["output.weight"] = w
            continue
        changed = w.reshape(b.shape[:-1] + a.shape[-1:]) + scale * b @ a
        if f"{of}.lora_magnitude" in adapter:
            changed *= (adapter[f"{of}.lora_magnitude"] / np.linalg.norm(changed, axis=-1))[:, None]
        merged[of] = changed.reshape(w.shape)
        if f"{of}.lora_bias" in adapter:
            bias = of.removesuffix("weight") + "bias"
            merged[bias] = merged.get(bias, 0.0) + scale * adapter[f"{of}.lora_bias"]
    return merged


def apart(ours: dict, theirs: dict) -> tuple[float, str]:
    """The largest difference of any tensor, in millionths of its largest element, and its name."""
    worst = (0.0, "")
    for name in ours.keys() | theirs.keys():
        if name not in ours or name not in theirs:
            return np.inf, f"{name} is in one of them"
        difference = 1e6 * np.abs(ours[name] - theirs[name]).max() / np.abs(theirs[name]).max()
        worst = max(worst, (difference, name))
    return worst


def modules(model) -> list[str]:
    """The linear modules of a model, by their last names."""
    kinds = (torch.nn.Linear, transformers.pytorch_utils.Conv1D)
    return sorted({name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, kinds) and name != "lm_head"})


def parameters(model) -> list[str]:
    """Stacks of matrices."""
    return sorted({".".join(name.split(".")[3:]) for name, weights in model.named_parameters() if weights.ndim == 3 and "conv" not in name})


class Bases:
    """Bases and what they are converted to, each made once."""

    def __init__(self, args, folder: Path):
        self.args, self.folder = args, folder

    def of(self, case: Published) -> tuple[Path, Path]:
        source, path = self.folder / case.name, self.folder / f"{case.name}.gguf"
        if not path.exists():
            published.write(case, source)
            published.tokenizer(case, source, hf_models.tokenizer(case.kind))
            agree.alight(self.args, "convert", source, "-o", path)
        return source, path


def check(args, report: agree.Report, bases: Bases, case: Case, folder: Path, seed: int) -> None:
    source, base = bases.of(case.base)
    name = f"{case.base.name}, {case.what}"
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager").eval()
    given = dict(r=4, lora_alpha=6) | case.config
    if "target_modules" not in given:
        given["target_modules"] = modules(model)
    if case.what == EVERYTHING and parameters(model):
        given["target_parameters"] = parameters(model)
    try:
        adapted = peft.get_peft_model(model, peft.LoraConfig(**given))
    except ValueError as trouble:
        print(f"{name}: PEFT does not adapt it: {trouble}")
        return
    fill(adapted, seed)
    lora, path = folder / "lora", folder / "lora.gguf"
    shutil.rmtree(lora, ignore_errors=True)
    adapted.save_pretrained(lora)
    case.change(lora)
    (folder / "bare").mkdir(exist_ok=True)
    shutil.copy(source / "config.json", folder / "bare")

    def convert(lora: Path) -> tuple[dict, float]:
        agree.alight(args, "convert", lora, "-o", path, "--base", folder / "bare", "--force")
        found, keys = arrays(path)
        return found, float(keys["adapter.lora.alpha"])

    try:
        adapter, alpha = convert(lora)
    except agree.Trouble as trouble:
        report.add(bool(case.refused) and case.refused in str(trouble), f"{name}: refused: {trouble}")
        return
    if case.refused:
        report.add(False, f"{name}: is not refused")
        return
    merged = folder / "merged"
    shutil.rmtree(merged, ignore_errors=True)
    computed = None
    if case.what != EVERYTHING:
        text = folder / "text.txt"
        text.write_text(tiny_models.text(200, seed))
        tokens, before = agree.ours(args, base, text, 1)
        with torch.no_grad():
            computed = torch.log_softmax(adapted(torch.tensor([tokens])).logits[0].double(), dim=-1).numpy()[agree.FIRST : agree.LAST + 1]
    whole = adapted.merge_and_unload()
    whole.float().save_pretrained(merged)
    for beside in source.glob("tokenizer*"):
        shutil.copy(beside, merged)
    shutil.copy(source / "config.json", merged)
    agree.alight(args, "convert", merged, "-o", folder / "merged.gguf", "--force")
    theirs, _ = arrays(folder / "merged.gguf")
    weights, _ = arrays(base)
    if case.base is TIED:
        # PEFT computes with the output that was, but merges into what both share.
        theirs["output.weight"] = weights["token_embd.weight"]
    found, where = apart(added(weights, adapter, alpha), theirs)
    report.within(name, f"converted ({where})", found, EXACT)
    agree.alight(args, "merge", base, path, "-o", folder / "ours.gguf", "--force")
    ours, _ = arrays(folder / "ours.gguf")
    found, where = apart(ours, theirs)
    report.within(name, f"merged ({where})", found, MERGED)
    if computed is not None:
        left_out = 0.1 if case.base.experts else 0.0
        _, ours = agree.ours(args, folder / "ours.gguf", text, 1)
        report.within(name, "log-probabilities beside PEFT's, not merged", agree.apart(computed, ours, left_out)[0], agree.TOLERANCE)
        report.within(name, "without the adapter", agree.apart(computed, before, left_out)[0], agree.CONTROL, above=True)
    for kind, what, mistake in case.mistakes:
        if kind == READ:
            wrong = added(weights, mistake(adapter), alpha)
        else:
            other = folder / "other"
            shutil.rmtree(other, ignore_errors=True)
            shutil.copytree(lora, other)
            mistake(other)
            wrong = added(weights, *convert(other))
        report.within(name, f"with a mistake: {what}", apart(wrong, theirs)[0], MISTAKE, above=True)


def blocks(args, report: agree.Report, folder: Path) -> None:
    """Experts of gpt-oss, whose base is in blocks that transformers does not write: their changes alone, in GGUF's order of rows."""
    source = folder / "gpt-oss"
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(
        **published.SMALL | dict(intermediate_size=64, head_dim=24, num_local_experts=5, num_experts_per_tok=2, rope_parameters=dict(rope_type="default", rope_theta=1e4)))).double()
    model.config.save_pretrained(source)
    config = peft.LoraConfig(r=3, lora_alpha=5, use_rslora=True, target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
    adapted = peft.get_peft_model(model, config)
    fill(adapted, args.seed)
    adapted.save_pretrained(folder / "lora-blocks")
    agree.alight(args, "convert", folder / "lora-blocks", "-o", folder / "blocks.gguf", "--base", source)
    found, keys = arrays(folder / "blocks.gguf")
    for layer in range(3):
        inner = adapted.base_model.model.model.layers[layer].mlp.experts
        changes = {wrapper.parameter_name: wrapper.get_delta_weight("default").detach().numpy().swapaxes(1, 2) for wrapper in (inner, inner.base_layer)}
        both = changes["gate_up_proj"]
        theirs = dict(ffn_gate_exps=both[:, 0::2], ffn_up_exps=both[:, 1::2], ffn_down_exps=changes["down_proj"])
        for part, expected in theirs.items():
            a, b = (found[f"blk.{layer}.{part}.weight.lora_{half}"] for half in "ab")
            ours = float(keys["adapter.lora.alpha"]) / b.shape[-1] * b @ a
            report.within(f"gpt-oss, layer {layer}", part, apart({part: ours}, {part: expected})[0], EXACT)


def add_arguments(parser) -> None:
    parser.add_argument("names", nargs="*", help="bases (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the factors")
    parser.add_argument("-q", "--quiet", action="store_true", help="only what fails, and the sum")
    common.add_arguments(parser, threads=1)


def run(args) -> int:
    args.step = 1
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    report = agree.Report(args.quiet)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        bases = Bases(args, folder)
        for case in [*CASES, *(Case(EVERYTHING, base) for base in OTHERS)]:
            if args.names and case.base.name not in args.names:
                continue
            try:
                check(args, report, bases, case, folder, args.seed)
            except agree.Trouble as trouble:
                report.add(False, f"{case.base.name}, {case.what}: {trouble}")
        if not args.names or "gpt-oss" in args.names:
            try:
                blocks(args, report, folder)
            except agree.Trouble as trouble:
                report.add(False, f"gpt-oss: {trouble}")
    print(f"peft {peft.__version__}, transformers {transformers.__version__}: {report.passed} passed, {report.failed} failed")
    return report.status()
