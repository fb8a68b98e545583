"""Makes Debian packages of the archives that `make dist` has written: target/dist/alight_VERSION_ARCHITECTURE.deb.

Needed: dpkg-deb. The package holds the static programs, so that it needs no other package and fits any release of Debian. The same
archive makes the same bytes. Each package is unpacked again, and the program in it is run if this machine can.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from evidence.lib import common
from evidence.make import dist

ARCHITECTURES = {"x86_64-unknown-linux-musl": "amd64", "aarch64-unknown-linux-musl": "arm64"}
# Where a file of the archive goes, by the beginning of its name.
PLACES = {
    "bin/": "usr/bin/",
    "share/man/man1/": "usr/share/man/man1/",
    "share/completions/bash/": "usr/share/bash-completion/completions/",
    "share/completions/zsh/": "usr/share/zsh/vendor-completions/",
    "share/completions/fish/": "usr/share/fish/vendor_completions.d/",
    "README.md": "usr/share/doc/alight/README.md",
    "SECURITY.md": "usr/share/doc/alight/SECURITY.md",
    "CONTRIBUTING.md": "usr/share/doc/alight/CONTRIBUTING.md",
    "docs/": "usr/share/doc/alight/docs/",
    "examples/": "usr/share/doc/alight/examples/",
    "crates/": "usr/share/doc/alight/crates/",
    "CHANGELOG.md": "usr/share/doc/alight/changelog",
    "LICENSE-MIT": "usr/share/doc/alight/LICENSE-MIT",
    "THIRD-PARTY-LICENSES.txt": "usr/share/doc/alight/THIRD-PARTY-LICENSES.txt",
    "sbom.cdx.json": "usr/share/doc/alight/sbom.cdx.json",
}
PACKED = ("usr/share/man/", "usr/share/doc/alight/changelog", "usr/share/doc/alight/THIRD-PARTY", "usr/share/doc/alight/sbom")


def add_arguments(parser) -> None:
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="which, by any part of the name (every archive that is there)")
    parser.add_argument("--archives", type=Path, default=None, help="the folder of the archives (default: target/dist)")


def installed(archive: Path) -> tuple[dict[str, tuple[bytes, int]], int]:
    """What the package puts where, with modes; and the time of it all."""
    files, when = {}, 0
    with tarfile.open(archive) as tar:
        for entry in tar:
            when = int(entry.mtime)
            name = entry.name.partition("/")[2]
            start = next((start for start in PLACES if name.startswith(start)), None)
            if not entry.isfile() or start is None:
                continue
            path, data = PLACES[start] + name.removeprefix(start), tar.extractfile(entry).read()
            if path.startswith(PACKED):
                path, data = path + ".gz", gzip.compress(data, 9, mtime=0)
            files[path] = (data, entry.mode)
    files["usr/share/doc/alight/copyright"] = ((common.ROOT / "packaging/debian/copyright").read_bytes(), 0o644)
    return files, when


def control(architecture: str, size: int) -> str:
    """Its description. The maintainers' address is that of the commits."""
    text = (common.ROOT / "packaging/debian/control").read_text()
    address = dist.git("log", "-1", "--format=%ae")
    for mark, value in {"@VERSION@": dist.version(), "@ARCHITECTURE@": architecture, "@SIZE@": str(-(-size // 1024)),
                        "@MAINTAINER@": f"The Alight authors <{address}>"}.items():
        text = text.replace(mark, value)
    return text


def package(archive: Path, target: str, out: Path) -> None:
    """Writes one package."""
    files, when = installed(archive)
    with tempfile.TemporaryDirectory(prefix="alight-deb-") as folder:
        root = Path(folder, "root")
        for path, (data, mode) in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
            (root / path).chmod(mode)
        (root / "DEBIAN").mkdir()
        (root / "DEBIAN/control").write_text(control(ARCHITECTURES[target], sum(len(data) for data, _ in files.values())))
        for path in sorted(root.rglob("*"), reverse=True):
            if path.is_dir():
                path.chmod(0o755)
            elif path.parent.name == "DEBIAN":
                path.chmod(0o644)
            os.utime(path, (when, when))
        root.chmod(0o755)
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, f"{out}.new"], check=True, stdout=subprocess.DEVNULL,
                       env=os.environ | {"SOURCE_DATE_EPOCH": str(when)})
        Path(f"{out}.new").replace(out)


def tried(deb: Path, target: str) -> str:
    """Unpacked again; what its program says, or why it was not run."""
    with tempfile.TemporaryDirectory(prefix="alight-deb-") as folder:
        subprocess.run(["dpkg-deb", "--extract", deb, folder], check=True)
        start = [] if target.startswith(os.uname().machine) else [shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")]
        if start == [None]:
            return "not run: qemu-user is not here"
        done = subprocess.run([*start, f"{folder}/usr/bin/alight", "--version"], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{deb}: the program in it does not run: {done.stderr.strip() or done.returncode}")
        return done.stdout.splitlines()[0]


def run(args) -> int:
    """A table of the packages."""
    if not shutil.which("dpkg-deb"):
        raise SystemExit("dpkg-deb is missing (Debian: apt install dpkg-dev)")
    place = args.archives or dist.folder()
    there = {target: place / f"alight-{target}.tar.gz" for target in ARCHITECTURES if any(part in target for part in args.targets or [""])}
    there = {target: path for target, path in there.items() if path.is_file()}
    if not there:
        raise SystemExit(f"no archive in {place}: make dist")
    rows = [["package", "bytes", "what its program says"]]
    for target, archive in there.items():
        out = place / f"alight_{dist.version()}_{ARCHITECTURES[target]}.deb"
        package(archive, target, out)
        rows.append([out.name, f"{out.stat().st_size:,}", tried(out, target)])
    common.table(rows)
    return 0
