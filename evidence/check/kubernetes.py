"""The manifests of packaging/kubernetes: valid by the published schemas, at one with each other, and with arguments and probes that the program has.

    PYTHON -m evidence check kubernetes [--crds DIR]

PYTHON has `kubernetes-validate`, `jsonschema` and `PyYAML`. The schemas of Kubernetes' own kinds come with the first. DIR has the CustomResourceDefinitions
of the others as their projects publish them (config/crd of kserve/kserve and kubernetes-sigs/gateway-api-inference-extension); without it they are not
tried, which is said. The container's command is run as the manifest has it, as another user where we are root: its probes, its metrics, and its end while it
streams. A misspelt field has to be seen. What needs a cluster is not tried here: that pods find each other, that the picker picks, that KServe fetches.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from evidence.lib import common
from evidence.lib.checks import Checks
from evidence.lib.lazy import lazily
from evidence.lib.process import free_port

yaml = lazily("yaml")
jsonschema = lazily("jsonschema")
kubernetes_validate = lazily("kubernetes_validate")

FOLDER = common.ROOT / "packaging/kubernetes"
NOBODY = 65532
"""The user of the container."""


def add_arguments(parser) -> None:
    common.add_arguments(parser)
    parser.add_argument("--crds", type=Path, help="a folder of CustomResourceDefinitions")
    parser.add_argument("--tokens", type=int, default=2000, help="tokens of the stream that goes on after SIGTERM")


def documents(path: Path) -> list[dict]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def closed(schema):
    """A schema of a CustomResourceDefinition in which a field that it does not name is an error, as the API's strict validation has it."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and "additionalProperties" not in made and not made.get("x-kubernetes-preserve-unknown-fields"):
        made["additionalProperties"] = False
    if made.pop("x-kubernetes-int-or-string", None):
        made.pop("type", None)
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    return made


def definitions(folder: Path | None) -> dict[tuple[str, str], dict]:
    """The schemas of kinds by (apiVersion, kind)."""
    found = {}
    for path in sorted(folder.rglob("*.yaml")) if folder else []:
        for one in documents(path):
            if one.get("kind") != "CustomResourceDefinition":
                continue
            for version in one["spec"]["versions"]:
                schema = version.get("schema", {}).get("openAPIV3Schema")
                if schema:
                    schema = copy.deepcopy(schema)
                    schema["properties"]["metadata"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                    found[(f"{one['spec']['group']}/{version['name']}", one["spec"]["names"]["kind"])] = closed(schema)
    return found


def problem(document: dict, known: dict) -> str | None:
    """What is wrong with a manifest by its schema; `None` if nothing is. A kind without a schema raises `KeyError`."""
    kind = (document["apiVersion"], document["kind"])
    if kind in known:
        errors = jsonschema.Draft7Validator(known[kind]).iter_errors(document)
        return next((f"{'.'.join(map(str, error.absolute_path))}: {error.message[:200]}" for error in errors), None)
    if "." in kind[0].partition("/")[0] and not kind[0].split("/")[0].endswith("k8s.io"):
        raise KeyError(kind)
    if kind[0].startswith("inference."):
        raise KeyError(kind)
    try:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(map(str, error.path))}: {error.message[:200]}"
    return None


def patched(deployment: dict, patch: dict) -> dict:
    """A deployment with a patch of volumes/: a volume of the same name gets its fields, and loses those that are null."""
    made = copy.deepcopy(deployment)
    for change in patch["spec"]["template"]["spec"]["volumes"]:
        for volume in made["spec"]["template"]["spec"]["volumes"]:
            if volume["name"] == change["name"]:
                volume |= change
                for name in [name for name, value in volume.items() if value is None]:
                    del volume[name]
    return made


def schemas(args, checks: Checks) -> None:
    known = definitions(args.crds)
    deployment = documents(FOLDER / "deployment.yaml")[0]
    tried = []
    for path in sorted(FOLDER.rglob("*.yaml")):
        if path.name in ("kustomization.yaml", "adapter-rules.yaml"):
            continue
        for document in documents(path):
            is_patch = "containers" not in json.dumps(document) and document["kind"] == "Deployment"
            whole = patched(deployment, document) if is_patch else document
            name = f"{path.relative_to(FOLDER)}: {document['kind']}"
            try:
                checks.wrong(name, problem(whole, known) or "")
                tried.append(whole)
            except KeyError:
                print(f"not tried: {name}: --crds has no definition of it")
    unseen = [document["kind"] for document in tried if not problem(document | {"spec": document["spec"] | {"selektor": {}}}, known)]
    checks.wrong(f"a misspelt field is seen in all {len(tried)}", unseen)


def at_one(checks: Checks) -> None:
    """What one manifest says of another."""
    deployment, service = documents(FOLDER / "deployment.yaml")[0], documents(FOLDER / "service.yaml")[0]
    pod = deployment["spec"]["template"]
    container, labels = pod["spec"]["containers"][0], pod["metadata"]["labels"]
    drain = next(int(word.partition("=")[2]) for word in container["args"] if word.startswith("--drain-seconds="))
    grace, before = pod["spec"]["terminationGracePeriodSeconds"], container["lifecycle"]["preStop"]["sleep"]["seconds"]
    checks.add(grace >= before + drain + 5, f"the pod is killed after {grace} s: {before} s of preStop and {drain} s of --drain-seconds before it")
    pool = documents(FOLDER / "inference-pool.yaml")[0]
    selectors = [deployment["spec"]["selector"]["matchLabels"], service["spec"]["selector"], pool["spec"]["selector"]["matchLabels"]]
    selectors += [one["spec"]["selector"]["matchLabels"] for one in documents(FOLDER / "autoscaling.yaml") if one["kind"] == "PodDisruptionBudget"]
    checks.add(all(selector.items() <= labels.items() for selector in selectors), "selectors find the pods")
    ports = {port["containerPort"] for port in container["ports"]}
    checks.add(f"--port={[*ports][0]}" in container["args"] and {port["number"] for port in pool["spec"]["targetPorts"]} == ports, "the port is one and the same")
    rules = documents(FOLDER / "adapter-rules.yaml")[0]["rules"]["custom"]
    wanted = {metric["pods"]["metric"]["name"] for metric in documents(FOLDER / "autoscaling.yaml")[0]["spec"]["metrics"]}
    checks.add(wanted == {rule["name"]["as"] for rule in rules}, f"the adapter knows what autoscaling asks for: {sorted(wanted)}")


class Container:
    """The container's command, with its model and folders where they are here."""

    def __init__(self, program: Path, model: Path, folder: Path):
        self.port, self.folder = free_port(), folder
        container = documents(FOLDER / "deployment.yaml")[0]["spec"]["template"]["spec"]["containers"][0]
        (folder / "models").mkdir()
        (folder / "models/model.gguf").symlink_to(model.resolve())
        (folder / "prompts").mkdir()
        os.chmod(folder, 0o755)
        os.chmod(folder / "models", 0o555)
        here = {"/models": f"{folder}/models", "--cache-dir=/prompts": f"--cache-dir={folder}/prompts", "--port=8080": f"--port={self.port}"}
        words = [re.sub(r"^/models(?=/)", here["/models"], here.get(word, word)) for word in container["args"]]
        words = [re.sub(r"^--threads=\d+$", "--threads=2", word) for word in words]
        user = {}
        if os.getuid() == 0:
            os.chown(folder / "prompts", 0, NOBODY)
            os.chmod(folder / "prompts", 0o2775)
            shutil.copy(program, folder / "alight")
            program, user = folder / "alight", {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        self.probes = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
        self.began = time.monotonic()
        self.process = subprocess.Popen([program, *words], stderr=subprocess.PIPE, text=True, cwd="/", env={"PATH": "/usr/bin"}, **user)

    def get(self, path: str, timeout: float = 5.0) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def stream(self, tokens: int, begun: threading.Event) -> list[str]:
        body = {"prompt": "Once upon a time", "max_tokens": tokens, "stream": True, "ignore_eos": True, "temperature": 0}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        lines = []
        with urllib.request.urlopen(request, timeout=600) as answer:
            for line in answer:
                if line.startswith(b"data: "):
                    lines.append(line[6:].decode().strip())
                    begun.set()
        return lines


def running(args, checks: Checks, program: Path, model: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        container = Container(program, model, Path(folder))
        try:
            path = container.probes["startupProbe"]
            while container.get(path)[0] != 200 and container.process.poll() is None and time.monotonic() < container.began + 60:
                time.sleep(0.002)
            ready = time.monotonic() - container.began
            if container.process.poll() is not None:
                checks.add(False, f"the container's command has ended: {container.process.stderr.read()}")
                return
            checks.add(all(container.get(path)[0] == 200 for path in container.probes.values()), f"ready {ready * 1000:.0f} ms after the process began, by its probes")
            begun, found = threading.Event(), []
            thread = threading.Thread(target=lambda: found.extend(container.stream(args.tokens, begun)))
            thread.start()
            begun.wait(60)
            status, text = container.get("/metrics")
            rules = documents(FOLDER / "adapter-rules.yaml")[0]["rules"]["custom"]
            series = [rule["seriesQuery"].partition("{")[0] for rule in rules]
            series += ["vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:cache_config_info"]
            missing = [name for name in series if not re.search(rf"^{name}[ {{]", text, re.MULTILINE)]
            checks.wrong("/metrics has what autoscaling and the picker ask for", missing)
            value = re.search(r"^vllm:num_requests_running\S* (\S+)", text, re.MULTILINE)
            checks.add(status == 200 and value is not None and float(value[1]) == 1, "one request is running")
            container.process.send_signal(signal.SIGTERM)
            ended = time.monotonic()
            time.sleep(0.5)
            checks.add(container.get("/health", 1)[0] == 0, "after SIGTERM nobody new is let in")
            thread.join()
            container.process.wait(30)
            took = time.monotonic() - ended
            checks.add(found[-1:] == ["[DONE]"] and took > 5.5, f"a stream that takes {took:.0f} s after SIGTERM comes to its end, {len(found)} events")
            checks.add(container.process.returncode == 0, f"then the process ends by itself, with status {container.process.returncode}")
        finally:
            container.process.kill()
            container.process.wait()


def units(checks: Checks, program: Path) -> None:
    """systemd's own look at the units."""
    if not shutil.which("systemd-analyze"):
        print("not tried: systemd-analyze is not installed here")
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in ("alight.socket", "alight.service"):
            text = (common.ROOT / "packaging/systemd" / name).read_text()
            (Path(folder) / name).write_text(re.sub(r"^(ExecStart=)\S+", rf"\g<1>{program}", text, flags=re.MULTILINE))
        looked = subprocess.run(["systemd-analyze", "verify", "--user", *sorted(map(str, Path(folder).iterdir()))], capture_output=True, text=True,
                                env=os.environ | {"XDG_RUNTIME_DIR": folder})
        checks.wrong("the units of packaging/systemd", [line for line in looked.stderr.splitlines() if "alight" in line])


def run(args) -> int:
    """Prints what is wrong; the exit status."""
    program, checks = common.alight(args.alight), Checks()
    schemas(args, checks)
    at_one(checks)
    running(args, checks, program, common.model_path("smollm2", common.models_folder()))
    units(checks, program)
    return checks.status()
