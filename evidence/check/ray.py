"""A job on a Ray cluster whose workers and nodes are killed again and again: the rows have the bytes of one process on one thread.

    PYTHON -m evidence check ray [--rows 2000] [--texts 20000] [--kills 20] [--nodes 4] [--model FILE]

PYTHON has `alight[ray]`. The cluster is Ray's own for tests (`ray.cluster_utils`): each node is a raylet with its own workers, and the kernels of
another SIMD level. What is killed with SIGKILL is in turn `alight batch`, the process of an actor, and a whole node, for which another one joins.
Rows whose request is wrong are among them. Without --model a small network with random weights answers. The mistake that has to be seen: one row that
was computed with the seed of another.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from evidence.lib import common, tiny_models, vector_clients
from evidence.lib.checks import Checks
from evidence.lib.lazy import lazily

ray = lazily("ray")
np = lazily("numpy")

WORDS = "harbour spring river stone market paper light winter engine garden letter number forest window summer travel music history".split()
MAX_TOKENS = 12
NODES = 3
"""Nodes that are killed in a job: Ray waits some ten seconds for one before it gives it up."""


def add_arguments(parser) -> None:
    common.add_arguments(parser)
    parser.add_argument("--rows", type=int, default=2000, help="rows of generation")
    parser.add_argument("--texts", type=int, default=20_000, help="rows of embeddings")
    parser.add_argument("--kills", type=int, default=20, help="of processes and nodes, in each of the two jobs")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--model", type=Path, help="a GGUF file that answers (default: a small one with random weights)")


def prompt(row: int) -> dict:
    """A row of the job; every 97th asks for what there is not, and every 89th has an empty answer of its own options."""
    drawn = random.Random(row)
    words = " ".join(drawn.choices(WORDS, k=drawn.randint(1, 24)))
    return {"id": row, "prompt": f"{row} {words}", "n": 2 if row % 97 == 5 else None, "temperature": [None, 0.0, 1.3][row % 3], "max_tokens": row % MAX_TOKENS + 1}


def text(row: int) -> dict:
    drawn = random.Random(-row)
    return {"id": row, "text": f"{row} {' '.join(drawn.choices(WORDS, k=drawn.randint(0, 16)))}"}


def alone(program: Path, model: Path, rows: list[dict]) -> list[tuple]:
    """The rows' answers by the command: one process, one sequence, one thread."""
    from alight.ray import row_seed

    lines = [{key: value for key, value in row.items() if key != "id" and value is not None} | {"seed": row_seed(row["id"])} for row in rows]
    command = [program, "batch", model, "-", "--sequences", "1", "--threads", "1", "--quiet"]
    found = subprocess.run(command, input="".join(json.dumps(line) + "\n" for line in lines), capture_output=True, text=True).stdout
    answers = []
    for line in map(json.loads, found.splitlines()):
        if line["error"]:
            answers.append((None, line["error"]["code"]))
        else:
            choice = line["response"]["body"]["choices"][0]
            answers.append((choice["message"]["content"] if "message" in choice else choice["text"], None))
    return answers


class Nodes:
    """The cluster, and what is killed of it."""

    def __init__(self, number: int, levels: list[str]):
        from ray.cluster_utils import Cluster

        self.levels, self.made = levels, 0
        # The head has no CPU for actors: with it the job's own record of what is done would go.
        self.cluster = Cluster(initialize_head=True, head_node_args={
            "num_cpus": 0, "object_store_memory": 150 * 2**20, "include_dashboard": False,
            "_system_config": {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 5},
        })
        self.nodes = [self.add() for _ in range(number)]
        ray.init(address=self.cluster.address, logging_level="ERROR", log_to_driver=False)
        self.killed = {"processes of alight batch": 0, "actors": 0, "nodes": 0}

    def add(self):
        self.made += 1
        level = self.levels[self.made % len(self.levels)]
        return self.cluster.add_node(num_cpus=1, object_store_memory=150 * 2**20, env_vars={"ALIGHT_ISA": level})

    def children(self) -> dict[str, list[int]]:
        """Processes of the nodes that can be killed, by kind: all are below a raylet of this cluster."""
        raylets = {process.process.pid for node in self.nodes for process in node.all_processes.get("raylet", [])}
        parents, names = {}, {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                stat = (folder / "stat").read_text()
                names[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            parents[int(folder.name)] = int(stat.rsplit(")", 1)[1].split()[1])
        actors = [pid for pid, name in names.items() if parents.get(pid) in raylets and "MapWorker" in name]
        return {"processes of alight batch": [pid for pid, name in names.items() if parents.get(pid) in actors and " batch " in name], "actors": actors}

    def kill(self, drawn: random.Random) -> None:
        """Kills something, if there is something; every tenth time or so, and if `NODES` are left to be killed, a node."""
        kind = drawn.choices(list(self.killed), [4, 4, 1])[0]
        if kind == "nodes" and self.killed[kind] < NODES:
            node = self.nodes.pop(drawn.randrange(len(self.nodes)))
            self.cluster.remove_node(node, allow_graceful=False)
            self.nodes.append(self.add())
        else:
            # Vectors are computed in the actors.
            children = self.children()
            kind = kind if children.get(kind) else "actors"
            if not (there := children[kind]):
                return
            try:
                os.kill(drawn.choice(there), signal.SIGKILL)
            except ProcessLookupError:
                return
        self.killed[kind] += 1


def under_fire(nodes: Nodes, kills: int, seconds: float, work) -> tuple[list[dict], dict]:
    """Does work while something is killed again and again, `kills` times in about these seconds. The work goes on afterwards."""
    nodes.killed = dict.fromkeys(nodes.killed, 0)
    drawn = random.Random(62)
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(work)
        # Here and not there, since Ray starts nodes in the main thread only.
        while sum(nodes.killed.values()) < kills and not wait([job], drawn.uniform(0.5, 1.5) * seconds / max(kills, 1)).done:
            nodes.kill(drawn)
        return job.result(), nodes.killed


def generation(args, model: Path, nodes: Nodes, program: Path, checks: Checks) -> None:
    from alight.ray import Generate, per_host

    rows = [prompt(row) for row in range(args.rows)]
    began = time.monotonic()
    expected = alone(program, model, rows)
    took = time.monotonic() - began
    how = {"key": "id", "fields": ("n", "temperature", "max_tokens"), "ctx_size": 512}

    def job() -> list[dict]:
        data = ray.data.from_items(rows, override_num_blocks=max(8, args.rows // 100))
        return data.map_batches(Generate, fn_constructor_args=(str(model),), fn_constructor_kwargs=how, **per_host(batch_size=64)).take_all()

    began = time.monotonic()
    found, killed = under_fire(nodes, args.kills, max(took, 20), job)
    seconds = time.monotonic() - began
    found.sort(key=lambda row: row["id"])
    same = [(row["answer"], row["error_code"]) for row in found] == expected and [row["id"] for row in found] == list(range(args.rows))
    errors = sum(row["error"] is not None for row in found)
    what = ", ".join(f"{number} {kind}" for kind, number in killed.items())
    checks.add(same, f"{args.rows} rows of generation, {errors} of them errors, on {args.nodes} nodes ({', '.join(nodes.levels)}), killed {what}: "
               f"the answers of one process on one thread ({seconds:.0f} s, alone {took:.0f} s)")
    checks.add(sum(killed.values()) >= args.kills // 2, f"killed {sum(killed.values())} times while it ran")
    checks.add(errors == sum(code is not None for _, code in expected) and errors > 0, f"{errors} rows have an error of their own, and ended nothing")
    # One whose tokens are drawn, and that has the most of them.
    at = next(row for row in range(args.rows) if row % 3 == 2 and row % MAX_TOKENS == MAX_TOKENS - 1)
    checks.add(alone(program, model, [rows[at] | {"id": -1}]) != expected[at : at + 1], "a row with the seed of another is seen")


def embeddings(args, model: Path, nodes: Nodes, program: Path, folder: Path, checks: Checks) -> None:
    from alight.ray import Embed, per_host

    class OfNode(Embed):
        """With the SIMD level of the node, which the command would read from the environment."""

        def __init__(self, model: str, **how):
            super().__init__(model, isa=os.environ.get("ALIGHT_ISA"), truncate=True, **how)

    texts = [text(row) for row in range(args.texts)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row["text"]) + "\n" for row in texts))
    began = time.monotonic()
    command = [program, "embed", model, folder / "texts.jsonl", "--json", "--threads", "1", "--sequences", "1", "--quiet", "-o", folder / "alone.npy"]
    subprocess.run(command, check=True)
    took = time.monotonic() - began
    expected = np.load(folder / "alone.npy")
    out = folder / "vectors"

    def job() -> list[dict]:
        data = ray.data.from_items(texts, override_num_blocks=max(8, args.texts // 1000))
        data.map_batches(OfNode, fn_constructor_args=(str(model),), **per_host()).write_parquet(str(out))
        return []

    began = time.monotonic()
    _, killed = under_fire(nodes, args.kills, max(took, 20), job)
    seconds = time.monotonic() - began
    import pyarrow.parquet as parquet

    table = parquet.read_table(out).sort_by("id")
    vectors = np.stack(table["embedding"].to_numpy())
    same = table["id"].to_pylist() == list(range(args.texts)) and vectors.tobytes() == expected.tobytes()
    what = ", ".join(f"{number} {kind}" for kind, number in killed.items())
    checks.add(same and table["error"].null_count == args.texts, f"{args.texts} rows of embeddings through Parquet, killed {what}: the bytes of one process on one thread "
               f"({seconds:.0f} s, alone {took:.0f} s)")


def run(args) -> int:
    """Prints what is wrong; the exit status."""
    program, checks = common.alight(args.alight), Checks()
    os.environ |= {"RAY_DEDUP_LOGS": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}
    known = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    levels = known.rsplit("(of ", 1)[1].rstrip(")\n").split(", ")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        model = args.model or tiny_models.write(tiny_models.Tiny("rows", "llama"), folder / "rows.gguf")
        encoder, _ = vector_clients.models(folder)
        nodes = Nodes(args.nodes, levels)
        ray.data.DataContext.get_current().enable_progress_bars = False
        try:
            generation(args, model, nodes, program, checks)
            embeddings(args, encoder, nodes, program, folder, checks)
        finally:
            ray.shutdown()
            nodes.cluster.shutdown()
    return checks.status()
