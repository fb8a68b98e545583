"""`alight pull` next to the Python package huggingface_hub, in one cache: what one has fetched the other finds, both at the same time,
and a model that is kept packed is no file of the hub to it.

The hub is a server of this process that speaks its API: a listing, files that are stored beside git and come from another server,
ranges. What it does when it lies is tested in `crates/hub/tests`; here another hand judges what is in the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import os
import random
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from evidence.lib import common, tiny_models
from evidence.lib.checks import Checks

REPO, COMMIT = "org/model-GGUF", "0123456789abcdef0123456789abcdef01234567"
LARGE, PARTS = "m-Q4_K_M.gguf", [f"big/m-Q8_0-0000{no}-of-00002.gguf" for no in (1, 2)]
SIZES = {LARGE: 20_000_003, PARTS[0]: 9_000_000, PARTS[1]: 70_001, "README.md": 12}

# What huggingface_hub does in a process of its own, as it reads the environment when it is imported.
OFFLINE = """
import json, huggingface_hub as hub
paths = [hub.hf_hub_download({repo!r}, name, local_files_only=True) for name in {names!r}]
folder = hub.snapshot_download({repo!r}, local_files_only=True)
print(json.dumps([folder, *paths]))
"""
# The file of the hub in the cache, or null.
CACHED = """
import json, huggingface_hub as hub
found = hub.try_to_load_from_cache({repo!r}, {names[0]!r})
print(json.dumps(found if isinstance(found, str) else None))
"""
FETCH = """
import json, huggingface_hub as hub
print(json.dumps(hub.hf_hub_download({repo!r}, {names[0]!r})))
"""
ONLINE = """
import json, huggingface_hub as hub
print(json.dumps([hub.hf_hub_download({repo!r}, name) for name in {names!r}]))
"""
SCAN = """
import json, huggingface_hub as hub
found = hub.scan_cache_dir()
print(json.dumps({{
    "warnings": [str(warning) for warning in found.warnings],
    "files": {{file.file_path.as_posix(): file.size_on_disk
              for repo in found.repos for revision in repo.revisions for file in revision.files}},
    "refs": sorted({{ref for repo in found.repos for ref in repo.refs}}),
    "incomplete": [file.file_path.name for file in getattr(found, "incomplete_files", [])],
}}))
"""
DELETE = """
import huggingface_hub as hub
hub.scan_cache_dir().delete_revisions({commit!r}).execute()
print("null")
"""


def add_arguments(parser) -> None:
    """The program."""
    parser.add_argument("--alight", type=Path, default=None, help="the binary (default: target/release/alight)")
    parser.add_argument("--verbose", action="store_true", help="say what holds, too")


class Hub:
    """Both servers, and how many bytes of files they have sent."""

    def __init__(self, files: dict[str, bytes] | None = None):
        source = random.Random(7)
        self.files = files or {name: source.randbytes(size) for name, size in SIZES.items()}
        self.hashes = {name: hashlib.sha256(content).hexdigest() for name, content in self.files.items()}
        self.sent, self.pause, self.lock = 0, 0.0, threading.Lock()
        self.bytes_at = self.serve(self.of_bytes)
        self.address = self.serve(self.of_hub)

    def serve(self, answer, tls: ssl.SSLContext | None = None) -> str:
        """A server in threads; its address."""

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                with contextlib.suppress(ConnectionError):
                    answer(self, self.path.split("?")[0])

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
            # Of a client that does not like the certificate.
            server.handle_error = lambda *_: None
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"https://localhost:{server.server_port}" if tls else f"http://127.0.0.1:{server.server_port}"

    def of_hub(self, to, path: str) -> None:
        """The listing, and where files are."""
        if path.startswith(f"/api/models/{REPO}"):
            siblings = [{"rfilename": name, "size": len(content)} | self.lfs(name) for name, content in self.files.items()]
            text = json.dumps({"id": REPO, "modelId": REPO, "sha": COMMIT, "private": False, "gated": False, "disabled": False,
                               "downloads": 0, "likes": 0, "tags": [], "siblings": siblings})
            if "/tree/" in path:
                text = json.dumps([{"type": "file", "path": one["rfilename"], "size": one["size"], "oid": "0" * 40}
                                   | ({"lfs": {"oid": one["lfs"]["sha256"], "size": one["size"], "pointerSize": 100}} if "lfs" in one else {})
                                   for one in siblings])
            return self.reply(to, 200, {"Content-Type": "application/json"}, text.encode())
        name = path.removeprefix(f"/{REPO}/resolve/").partition("/")[2]
        if name not in self.files:
            return self.reply(to, 404, {"X-Error-Code": "EntryNotFound"}, b"")
        digest, headers = self.hashes[name], {"X-Repo-Commit": COMMIT}
        if not self.lfs(name):
            return self.reply(to, 200, headers | {"ETag": f'"{digest[:40]}"'}, self.files[name])
        headers |= {"X-Linked-ETag": f'"{digest}"', "X-Linked-Size": str(len(self.files[name]))}
        return self.reply(to, 302, headers | {"Location": f"{self.bytes_at}/{digest}?Signature=s"}, b"")

    def lfs(self, name: str) -> dict:
        """What a listing says of a file that is stored beside git."""
        if not name.endswith(".gguf"):
            return {}
        return {"lfs": {"sha256": self.hashes[name], "size": len(self.files[name]), "pointerSize": 100}}

    def of_bytes(self, to, path: str) -> None:
        """A file or a range of it, slowly if that is wanted."""
        content = next(content for name, content in self.files.items() if self.hashes[name] == path[1:])
        asked = to.headers.get("Range")
        if not asked:
            return self.reply(to, 200, {"Accept-Ranges": "bytes"}, content, counted=True)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        first, last = int(first), min(int(last or len(content)), len(content) - 1)
        headers = {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
        return self.reply(to, 206, headers, content[first:last + 1], counted=True)

    def reply(self, to, status: int, headers: dict, content: bytes, counted: bool = False) -> None:
        to.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            to.send_header(name, value)
        to.end_headers()
        if to.command == "HEAD":
            return
        for at in range(0, len(content), 1 << 17):
            piece = content[at:at + (1 << 17)]
            to.wfile.write(piece)
            if counted:
                time.sleep(self.pause)
                with self.lock:
                    self.sent += len(piece)

    def taken(self) -> int:
        """Bytes that were sent since the last time."""
        with self.lock:
            sent, self.sent = self.sent, 0
        return sent


class Cache:
    """An empty cache, and both programs that use it."""

    def __init__(self, hub: Hub, alight: Path, folder: Path):
        self.alight, self.path = alight, folder / "hub"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        self.environment = kept | {"HF_ENDPOINT": hub.address, "HF_HUB_CACHE": str(self.path), "HF_HOME": str(folder / "home"),
                                   "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "*", "no_proxy": "*"}

    def start(self, *words, **more) -> subprocess.Popen:
        return subprocess.Popen([str(word) for word in words], env=self.environment | more, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def ended(self, process: subprocess.Popen):
        """What it has written, line by line as JSON."""
        out, err = process.communicate(timeout=120)
        if process.returncode:
            raise SystemExit(f"{process.args[:3]} has failed with {process.returncode}: {err}")
        return [json.loads(line) for line in out.splitlines()]

    def ours(self, *words, **more) -> list:
        return self.ended(self.start(self.alight, *words, "--json", **more))

    def theirs(self, text: str, **more):
        names = [LARGE, *PARTS]
        return self.ended(self.start(sys.executable, "-c", text.format(repo=REPO, names=names, commit=COMMIT), **more))[-1]

    def are_right(self, hub: Hub, paths: list[str]) -> bool:
        return all(Path(path).read_bytes() == hub.files[name] for path, name in zip(paths, [LARGE, *PARTS], strict=True))


def ours_first(hub: Hub, cache: Cache, checks: Checks) -> None:
    """What alight has pulled, huggingface_hub finds, scans and deletes."""
    pulled = cache.ours("pull", REPO, f"{REPO}:Q8_0")
    paths = [path for model in pulled for path in model["files"]]
    checks.add(cache.are_right(hub, paths) and hub.taken() == sum(SIZES[name] for name in [LARGE, *PARTS]), "alight pull: the bytes, once")
    folder, *found = cache.theirs(OFFLINE, HF_HUB_OFFLINE="1")
    checks.add(found == paths, "huggingface_hub finds offline what alight has pulled")
    checks.add(folder == str(cache.path / "models--org--model-GGUF/snapshots" / COMMIT), "huggingface_hub finds the snapshot")
    checks.add(cache.theirs(ONLINE) == paths and hub.taken() == 0, "huggingface_hub fetches nothing again")
    scanned = cache.theirs(SCAN)
    checks.add(not scanned["warnings"] and scanned["refs"] == ["main"] and not scanned["incomplete"], f"huggingface_hub scans the cache {scanned['warnings']}")
    checks.add(scanned["files"] == {path: Path(path).stat().st_size for path in paths}, "huggingface_hub counts the files")
    cache.ended(cache.start(cache.alight, "rm", f"{REPO}:Q8_0"))
    scanned = cache.theirs(SCAN)
    checks.add(not scanned["warnings"] and list(scanned["files"]) == paths[:1], "alight rm leaves a cache that is whole")
    cache.theirs(DELETE)
    checks.add(cache.ours("list") == [], "what huggingface_hub has deleted alight does not list")


def theirs_first(hub: Hub, cache: Cache, checks: Checks) -> None:
    """What huggingface_hub has fetched, alight finds, lists and removes."""
    paths = cache.theirs(ONLINE)
    hub.taken()
    offline = cache.ours("pull", f"{REPO}:Q4_K_M", f"{REPO}:Q8_0", HF_HUB_OFFLINE="1")
    checks.add([path for model in offline for path in model["files"]] == paths, "alight finds offline what huggingface_hub has fetched")
    online = cache.ours("pull", f"{REPO}:Q4_K_M", f"{REPO}:Q8_0")
    checks.add([model["received_bytes"] for model in online] == [0, 0] and hub.taken() == 0, "alight fetches nothing again")
    listed = cache.ours("list")
    checks.add([(model["tag"], model["revisions"]) for model in listed] == [("Q4_K_M", ["main"]), ("Q8_0", ["main"])], "alight lists it")
    cache.ended(cache.start(cache.alight, "rm", "--all", REPO))
    checks.add(not cache.theirs(SCAN)["files"], "alight removes it")


def at_the_same_time(hub: Hub, cache: Cache, checks: Checks) -> None:
    """Both want the same files."""
    hub.pause = 0.005
    script = ONLINE.format(repo=REPO, names=[LARGE, *PARTS])
    both = [cache.start(cache.alight, "pull", f"{REPO}:Q4_K_M", f"{REPO}:Q8_0", "--json"), cache.start(sys.executable, "-c", script)]
    ours, theirs = (cache.ended(process) for process in both)
    hub.pause = 0.0
    paths = [path for model in ours for path in model["files"]]
    checks.add(paths == theirs[-1] and cache.are_right(hub, paths), "both at the same time are right")
    checks.add(hub.taken() == sum(SIZES[name] for name in [LARGE, *PARTS]), "and no byte is fetched twice")
    scanned = cache.theirs(SCAN)
    checks.add(not scanned["warnings"] and not scanned["incomplete"], "and the cache is whole")


def killed(hub: Hub, cache: Cache, checks: Checks) -> None:
    """What a killed pull leaves is in nobody's way, and is gone on with."""
    hub.pause = 0.02
    process = cache.start(cache.alight, "pull", f"{REPO}:Q4_K_M", "--json")
    blobs = cache.path / "models--org--model-GGUF/blobs"
    while not any(file.stat().st_blocks > 4000 for file in blobs.glob("*.incomplete")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    hub.pause = 0.0
    left = [file.name for file in blobs.iterdir()]
    checks.add(left == [f"{hub.hashes[LARGE]}.alight.incomplete"], f"a killed pull leaves one incomplete file {left}")
    (again,) = cache.ours("pull", f"{REPO}:Q4_K_M")
    checks.add(0 < again["received_bytes"] < SIZES[LARGE], f"and the next one goes on with it {again['received_bytes']}")
    checks.add(Path(again["path"]).read_bytes() == hub.files[LARGE], "to the right bytes")


def kept_packed(_hub: Hub, cache: Cache, checks: Checks) -> None:
    """A packed model is alight's alone: huggingface_hub scans and deletes it, never takes it for the hub's file, and fetches its own."""
    hub = packable(cache)
    digest, snapshot = hub.hashes[LARGE], cache.path / "models--org--model-GGUF/snapshots" / COMMIT
    blobs, link = cache.path / "models--org--model-GGUF/blobs", snapshot / LARGE.replace(".gguf", ".packed.gguf")
    packed_blob = blobs / f"{digest}.alight.packed"
    (kept,) = cache.ours("pull", "--pack", REPO)
    checks.add(kept["packed"] and kept["path"] == str(link) and hub.taken() == len(hub.files[LARGE]), "alight pull --pack: the bytes, once")
    checks.add(list(blobs.iterdir()) == [packed_blob], "and the packed file alone is kept")
    scanned = cache.theirs(SCAN)
    checks.add(not scanned["warnings"] and not scanned["incomplete"], f"huggingface_hub scans a cache with a packed file {scanned['warnings']}")
    checks.add(scanned["files"] == {str(link): packed_blob.stat().st_size}, "and counts it")
    checks.add(cache.theirs(CACHED) is None, "huggingface_hub does not take it for the hub's file")
    checks.add(restored(cache, link) == hub.files[LARGE], "alight unpack: the bytes of the hub")
    (again,) = cache.ours("pull", REPO)
    checks.add(again["path"] == str(link) and hub.taken() == 0, "alight fetches nothing again")
    fetched = Path(cache.theirs(FETCH))
    checks.add(fetched == snapshot / LARGE and fetched.read_bytes() == hub.files[LARGE], "huggingface_hub fetches its own next to it")
    (listed,) = cache.ours("list")
    checks.add(listed["path"] == str(link), "of the two, alight lists the packed one, once")
    hub.taken()
    (again,) = cache.ours("pull", "--pack", "--offline", REPO)
    checks.add(again["path"] == str(link) and list(blobs.iterdir()) == [packed_blob] and not fetched.exists(), "and --pack keeps that alone again")
    cache.ended(cache.start(cache.alight, "rm", REPO))
    scanned = cache.theirs(SCAN)
    checks.add(not scanned["files"] and not scanned["warnings"] and not packed_blob.exists(), "alight rm removes it")


def packed_of_theirs(_hub: Hub, cache: Cache, checks: Checks) -> None:
    """What huggingface_hub has fetched is packed without a network, and deleted by it; a kill in the middle loses neither form."""
    hub = packable(cache)
    fetched = Path(cache.theirs(FETCH))
    hub.taken()
    blobs = cache.path / "models--org--model-GGUF/blobs"
    process = cache.start(cache.alight, "pull", "--pack", "--offline", REPO)
    while process.poll() is None and [file.name for file in blobs.iterdir()] == [hub.hashes[LARGE]]:
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (found,) = cache.ours("list")
    content = Path(found["path"]).read_bytes() if not found["packed"] else restored(cache, Path(found["path"]))
    checks.add(content == hub.files[LARGE], f"after a kill one form is there, and whole (packed: {found['packed']})")
    scanned = cache.theirs(SCAN)
    checks.add(not scanned["warnings"], f"and huggingface_hub scans what it has left {scanned['warnings']}")
    (kept,) = cache.ours("pull", "--pack", "--offline", REPO)
    link = fetched.with_name(fetched.name.replace(".gguf", ".packed.gguf"))
    checks.add(kept["path"] == str(link) and not fetched.exists() and hub.taken() == 0, "what huggingface_hub has fetched is packed without a network")
    checks.add(restored(cache, link) == hub.files[LARGE], "to what is the hub's file again")
    cache.theirs(DELETE)
    checks.add(cache.ours("list") == [] and not list(blobs.glob("*")), "huggingface_hub deletes it with its revision")


def packable(cache: Cache) -> Hub:
    """A hub with a model that can be packed, which the cache is now of."""
    model = tiny_models.Tiny("tiny", "llama", layers=2, embd=1024, ff=2048, heads=8, head_dim=128, kind="Q4_0")
    path = tiny_models.write(model, cache.path.parent / LARGE)
    hub = Hub({LARGE: path.read_bytes()})
    cache.environment["HF_ENDPOINT"] = hub.address
    return hub


def restored(cache: Cache, packed: Path) -> bytes:
    """The bytes of which a packed file was made."""
    path = cache.path.parent / "restored.gguf"
    path.unlink(missing_ok=True)
    cache.ended(cache.start(cache.alight, "unpack", packed, "-o", path))
    return path.read_bytes()


def over_tls(hub: Hub, cache: Cache, checks: Checks) -> None:
    """A hub with a certificate: it is looked at, and no redirect leads away from it to a server without one."""
    if not shutil.which("openssl"):
        return common.say("the hub over TLS is left out: there is no openssl, which makes a certificate")
    folder = cache.path.parent
    names = [str(folder / name) for name in ("key.pem", "certificate.pem")]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE",
                    "-keyout", names[0], "-out", names[1]], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(names[1], names[0])
    address, plain = hub.serve(hub.of_hub, tls), hub.bytes_at
    trusted = {"HF_ENDPOINT": address, "SSL_CERT_FILE": names[1], "HF_TOKEN": "hf_secret"}

    def refused(**environment) -> str:
        process = cache.start(cache.alight, "pull", REPO, **environment)
        _, said = process.communicate(timeout=120)
        return said if process.returncode == 1 else f"exit status {process.returncode}: {said}"

    said = refused(HF_ENDPOINT=address)
    checks.add("certificate" in said and said.count("\n") == 1, f"a certificate that nobody trusts is an error: {said}")
    said = refused(**trusted)
    checks.add("from https to http" in said, f"no redirect leads from https to http: {said}")
    hub.bytes_at = hub.serve(hub.of_bytes, tls)
    (pulled,) = cache.ours("pull", REPO, **trusted)
    checks.add(Path(pulled["path"]).read_bytes() == hub.files[LARGE], "over TLS: the bytes")
    hub.bytes_at = plain


def run(args) -> int:
    """Prints what is wrong; the exit status."""
    program, checks, hub = common.alight(args.alight), Checks(quiet=not args.verbose), Hub()
    for check in (ours_first, theirs_first, at_the_same_time, killed, kept_packed, packed_of_theirs, over_tls):
        with tempfile.TemporaryDirectory() as folder:
            check(hub, Cache(hub, program, Path(folder)), checks)
    return checks.status()
