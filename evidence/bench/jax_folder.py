"""A Hugging Face folder onto eight CPU devices of JAX's: `load_model` beside the ways people have.

A folder of a Llama with random bf16 weights is written (--layers; 2.2 GB with 16). Then each way loads it in turns, in a process of its own that has started JAX
already: out of the page cache and, where the kernel drops the files when it is asked to, from the disk. Told are the seconds until all arrays are on their
devices, what the process has of its own then, its peak, and from the disk the bytes that it has read. The ways:

- `load_model(folder, weights="bf16", tp=8)`, which has the whole model then;
- `safe_open(…).get_tensor` and `jax.device_put` with a sharding: each tensor whole, then cut;
- `safe_open(…).get_slice` in `jax.make_array_from_callback`: each device's part alone, by hand;
- orbax: `StandardCheckpointer().restore` with shardings, of a checkpoint that was written with them before.

Matrices are cut as a Llama's are: rows of q, k, v, gate, up and the vocabulary, columns of o and down. What needs a package that is missing (safetensors,
orbax-checkpoint) is named and left out; `--packages FOLDER` says where they are (`pip install --no-deps --target FOLDER …`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from evidence.lib import cached, common, process, random_safetensors
from evidence.lib.lazy import lazily

alight = lazily("alight")
jax = lazily("jax")
np = lazily("numpy")

RANKS = 8
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2048, 8192, 32, 8, 64, 32000
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "vocab_size": VOCAB,
    "max_position_embeddings": 4096, "tie_word_embeddings": False, "hidden_act": "silu",
}


# --- the folder ----------------------------------------------------------------------------------

def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Every tensor, by its name."""
    each = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN), "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN), "mlp.up_proj": (INTERMEDIATE, HIDDEN), "mlp.down_proj": (HIDDEN, INTERMEDIATE),
        "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
    }
    found = {f"model.layers.{n}.{name}.weight": shape for n in range(layers) for name, shape in each.items()}
    return found | {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}


def write(folder: Path, layers: int) -> None:
    """`config.json` and one file of safetensors, with numbers around 0.02."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": layers}))
    random_safetensors.write(folder / "model.safetensors", shapes(layers), 0x3C00)


# --- the ways ------------------------------------------------------------------------------------

def sharding(name: str):
    """How a tensor is cut."""
    from jax.sharding import NamedSharding, PartitionSpec as P

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:RANKS]), ("tp",))
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        return NamedSharding(mesh, P(None, "tp"))
    return NamedSharding(mesh, P() if "norm" in name else P("tp", None))


def ours(folder: Path):
    from alight.jax.models import load_model

    model = load_model(folder, weights="bf16", tp=RANKS, context=64)
    return model.params


def whole(folder: Path):
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", framework="flax") as file:
        return {name: jax.device_put(file.get_tensor(name), sharding(name)) for name in file.keys()}  # noqa: SIM118: it is no dict


def slices(folder: Path):
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", framework="flax") as file:
        def one(name: str):
            part = file.get_slice(name)
            return jax.make_array_from_callback(tuple(part.get_shape()), sharding(name), lambda index: part[index])

        return {name: jax.block_until_ready(one(name)) for name in file.keys()}  # noqa: SIM118: it is no dict


def checkpoint(folder: Path) -> Path:
    return folder.with_name("orbax")


def save(folder: Path):
    """Not measured: the checkpoint that `restored` reads."""
    import alight.jax
    import orbax.checkpoint as ocp

    found = {name: jax.device_put(array, sharding(name)) for name, array in alight.jax.load(folder, progress=False).items()}
    with ocp.StandardCheckpointer() as saver:
        saver.save(checkpoint(folder), found)
    return found


def restored(folder: Path):
    import orbax.checkpoint as ocp

    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    wanted = {name: jax.ShapeDtypeStruct(shape, jax.numpy.bfloat16, sharding=sharding(name)) for name, shape in shapes(layers).items()}
    with ocp.StandardCheckpointer() as reader:
        return reader.restore(checkpoint(folder), wanted)


# By name: what it calls, and the package that it needs.
WAYS = {
    "load_model": (ours, None),
    "safetensors, whole + device_put": (whole, "safetensors"),
    "safetensors, slices": (slices, "safetensors"),
    "orbax": (restored, "orbax"),
}


# --- one load ------------------------------------------------------------------------------------

def told_by_kernel(name: str, file: str = "status") -> int:
    """A number of this process's, in bytes."""
    line = next(line for line in Path("/proc/self", file).read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * (1024 if line.endswith("kB") else 1)


def measure(args) -> None:
    """A child: everything is imported and JAX has made an array before the clock starts."""
    way, package = (save, "orbax") if args.measure == "save" else WAYS[args.measure]
    import alight.jax.models  # noqa: F401

    if package:
        __import__("orbax.checkpoint" if package == "orbax" else package)
    jax.block_until_ready(jax.device_put(np.ones(1 << 20, np.float32), jax.devices()[0]))
    own, peak, read = told_by_kernel("RssAnon"), told_by_kernel("VmHWM"), told_by_kernel("read_bytes", "io")
    start = time.perf_counter()
    found = jax.block_until_ready(way(args.source))
    seconds = time.perf_counter() - start
    arrays = [leaf for leaf in jax.tree.leaves(found) if hasattr(leaf, "addressable_shards")]
    process.tell_result({
        "seconds": seconds, "own": told_by_kernel("RssAnon") - own, "peak": told_by_kernel("VmHWM") - peak,
        "read": told_by_kernel("read_bytes", "io") - read, "arrays": sum(shard.data.nbytes for one in arrays for shard in one.addressable_shards),
    })


# --- all of them ---------------------------------------------------------------------------------

def add_arguments(parser) -> None:
    parser.add_argument("--layers", type=int, default=16, help="layers of the model (16: 2.2 GB)")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--packages", type=Path, default=None, help="a folder with safetensors and orbax-checkpoint")
    parser.add_argument("--measure", help="run by this command, for each way")
    parser.add_argument("--source", type=Path, help="run by this command, for each way")
    common.add_folder_argument(parser)


def child(args, way: str, folder: Path) -> dict | None:
    """What one load has told, or nothing, and then why is said."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={RANKS}"}
    if args.packages:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(common.ROOT), str(args.packages.resolve())]))
    command = [sys.executable, "-m", "evidence", "bench", "jax-folder", "--measure", way, "--source", str(folder)]
    done = subprocess.run(command, cwd=common.ROOT, env=environment, text=True, capture_output=True)
    told = process.results(done.stdout)
    if not told:
        print(f"{way}: failed\n" + "\n".join(done.stderr.splitlines()[-6:]), flush=True)
        return None
    return told[0]


def run(args) -> None:
    if args.measure:
        return measure(args)
    if args.packages:
        sys.path.append(str(args.packages))
    missing = {package for _, package in WAYS.values() if package and importlib.util.find_spec(package) is None}
    for package in sorted(missing):
        print(f"{package} is not installed: what needs it is left out", file=sys.stderr)
    ways = [way for way, (_, package) in WAYS.items() if package not in missing]
    failed = 0
    rows = [["where the files are", "way", "s", "GB/s", "of its own, GB", "peak, GB", "read from the disk, GB"]]
    with common.temporary_folder(args, "jax-folder") as parent:
        folder = Path(parent) / "folder"
        write(folder, args.layers)
        size = (folder / "model.safetensors").stat().st_size
        if "orbax" in ways and child(args, "save", folder) is None:
            ways.remove("orbax")
            failed = 1
        for where in ("page cache", "disk"):
            found: dict[str, list[dict]] = {way: [] for way in ways}
            for _ in range(args.turns):
                for way in ways:
                    for path in filter(Path.is_file, (checkpoint(folder) if way == "orbax" else folder).rglob("*")):
                        (cached.make_warm if where == "page cache" else cached.evict)(path)
                    told = child(args, way, folder)
                    failed |= told is None
                    found[way] += [told] if told else []
            for way, turns in found.items():
                if not turns:
                    continue
                if any(turn["arrays"] < size - (1 << 20) for turn in turns):
                    raise SystemExit(f"{way}: {turns[0]['arrays']:,} bytes of arrays, expected those of a file of {size:,}")
                seconds = [turn["seconds"] for turn in turns]
                middle = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
                rows.append([where, way, f"{middle['seconds']:.2f} ({min(seconds):.2f}–{max(seconds):.2f})", f"{size / middle['seconds'] / 1e9:.2f}",
                             *(f"{middle[key] / 1e9:.2f}" for key in ("own", "peak")), f"{middle['read'] / 1e9:.2f}" if where == "disk" else ""])
    common.table(rows)
    sys.exit(failed)
