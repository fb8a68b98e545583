"""Builds what a release is: static programs for Linux on x86_64 and aarch64, in archives that anybody can make again byte for byte.

For each target target/dist/alight-VERSION-TARGET.tar.gz, with `alight`, `rusage`, their manual pages, completions for four shells, the
documentation and its examples, the licences of Alight and of every package in it, and a list of those packages (an SBOM, CycloneDX). SHA256SUMS has the hashes
of all archives, and beside it lies the installer, scripts/install.sh. With `--url` the installer knows where to download
from, and a Homebrew formula is written.

The linker and the C library are Rust's own for these targets, as for `make cross`; zig compiles what packages have of C. No path, time, owner or order of this machine gets into an archive;
`python -m evidence check dist` shows it. What is built is the working tree: a release is built of a clean checkout.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

from evidence.lib import common, licences
from evidence.make import cross

TARGETS = ("x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl")
SHELLS = {"bash": "alight", "zsh": "_alight", "fish": "alight.fish", "elvish": "alight.elv"}


def folder() -> Path:
    return common.TARGET / "dist"


def add_arguments(parser) -> None:
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="which, by any part of the name (all)")
    parser.add_argument("--url", default="", help="the folder of the web that the release will be in, for the installer and Homebrew")
    parser.add_argument("--out", type=Path, default=None, help="where the archives are written (default: target/dist)")


# What there is to read beside the programs, as the repository has it: files, and folders whole.
DOCUMENTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE-APACHE", "LICENSE-MIT", "docs", "examples",
             "crates/model/examples/answer.rs", "crates/model/examples/many_answers.rs")


# --- the programs --------------------------------------------------------------------------------

def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=common.ROOT, check=True, capture_output=True, text=True).stdout.strip()


def told_by_git() -> tuple[str, int]:
    """The commit, as `--version` names it, and its time."""
    commit = os.environ.get("ALIGHT_COMMIT") or git("rev-parse", "--short=12", "HEAD")
    return commit, int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct"))


def remapped() -> tuple[str, ...]:
    """The folders of this machine, under names that are the same on all."""
    home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")).resolve()
    sources = sorted((home / "registry/src").glob("*"))
    # rustc takes the last that fits.
    return (f"{common.ROOT}=/alight", f"{cross.folder()}=/target", f"{home}=/cargo", *(f"{one}=/cargo/src" for one in sources))


def build(target: str, python: Path) -> str:
    """Both programs, each by the profile that is made for it; what went wrong, in a line, or nothing."""
    commit, when = told_by_git()
    subprocess.run(["cargo", "fetch", "--locked", "--quiet"], cwd=common.ROOT, check=True)  # before the sources' folders are listed
    maps = " ".join(f"-ffile-prefix-map={one}" for one in remapped())
    more = cross.environment_of_c(target, python, maps) | {
        "ALIGHT_COMMIT": commit, "SOURCE_DATE_EPOCH": str(when), "CARGO_INCREMENTAL": "0", "LC_ALL": "C", "TZ": "UTC"}
    for package, profile in (("rusage", cross.PROFILE), ("alight", "dist")):
        common.say(f"building {package} for {target}")
        if wrong := cross.build(target, package, common.ROOT / "Cargo.toml", python, profile, remapped(), more):
            return f"{package}: {wrong}"
    return ""


# --- what goes beside them ----------------------------------------------------------------------

def version() -> str:
    return next(line.split('"')[1] for line in (common.ROOT / "Cargo.toml").read_text().splitlines() if line.startswith("version = "))


def runnable() -> Path:
    """A built `alight` that this machine runs: manual pages and completions are the same for every target."""
    for target in (f"{os.uname().machine}-unknown-linux-musl", *TARGETS):
        path = cross.program(target, "alight")
        if path.is_file() and target.startswith(os.uname().machine):
            return path
    raise SystemExit("make dist: build for this machine, too, whose program writes the manual pages")


def tools(python: Path) -> dict[str, tuple[str, str, str]]:
    """What is in a program and no package of Cargo's: version, licence, text."""
    zig = next((python.parent.parent / "lib").glob("python*/site-packages/ziglang"))
    told = subprocess.run(["rustc", "--version", "--verbose"], check=True, capture_output=True, text=True, cwd=common.ROOT).stdout
    rust = next(line.split()[1] for line in told.splitlines() if line.startswith("release:"))
    licences_of_rust = "\n\n".join((common.ROOT / name).read_text() for name in ("LICENSE-APACHE",)) + (
        "\n\nThe standard library of Rust is by the Rust Project's contributors and offered under the above or the MIT licence.")
    return {
        "Rust's standard library": (rust, "Apache-2.0 OR MIT", licences_of_rust),
        # Both come with the standard library, without their texts, which zig has, too.
        "musl": (f"of Rust {rust}", "MIT", (zig / "lib/libc/musl/COPYRIGHT").read_text()),
        "libunwind and compiler-builtins": (f"of Rust {rust}", "Apache-2.0 WITH LLVM-exception AND MIT",
                                            (zig / "lib/libunwind/LICENSE.TXT").read_text()),
    }


def documents() -> list[str]:
    """Every file that there is to read, by its path in the repository, which is that in an archive, too. So links between them stay
    whole (`python -m evidence check docs`)."""
    paths = [path for name in DOCUMENTS for path in ([common.ROOT / name] if (common.ROOT / name).is_file() else (common.ROOT / name).rglob("*"))]
    names = [path.relative_to(common.ROOT) for path in paths if path.is_file()]
    return sorted(str(name) for name in names if not any(part.startswith((".", "__")) for part in name.parts))


def contents(target: str, python: Path) -> dict[str, tuple[bytes, int]]:
    """Every file of an archive, by its path inside, with its mode."""
    from datetime import UTC, datetime
    found = licences.packages(target)
    extra = tools(python)
    when = datetime.fromtimestamp(told_by_git()[1], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    files = {f"bin/{name}": (cross.program(target, name).read_bytes(), 0o755) for name in ("alight", "rusage")}
    for name in documents():
        path = common.ROOT / name
        files[name] = (path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644)
    files["THIRD-PARTY-LICENSES.txt"] = (
        licences.third_party(found, {f"{name} {of} ({licence})": text for name, (of, licence, text) in extra.items()}).encode(), 0o644)
    files["sbom.cdx.json"] = (licences.sbom(found, target, version(), when,
                                            {name: (of, licence) for name, (of, licence, _) in extra.items()}).encode(), 0o644)
    program = runnable()
    pages = cross.folder() / "man"
    shutil.rmtree(pages, ignore_errors=True)
    # Of a width and a configuration that are nobody's.
    clean = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "COLUMNS": "100", "HOME": "/nonexistent"}
    subprocess.run([program, "man", "-o", pages], check=True, env=clean)
    for page in sorted(pages.iterdir()):
        files[f"share/man/man1/{page.name}"] = (page.read_bytes(), 0o644)
    for shell, name in SHELLS.items():
        told = subprocess.run([program, "completions", shell], check=True, capture_output=True, env=clean).stdout
        files[f"share/completions/{shell}/{name}"] = (told, 0o644)
    return files


# --- the archives --------------------------------------------------------------------------------

def archive(top: str, files: dict[str, tuple[bytes, int]], when: int) -> bytes:
    """A tar.gz of which nothing depends on this machine."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        folders = sorted({str(parent) for name in files for parent in Path(top, name).parents if str(parent) != "."})
        for name in sorted([*folders, *(f"{top}/{name}" for name in files)]):
            entry = tarfile.TarInfo(name)
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = when, 0, 0, "", ""
            if name in folders:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
                continue
            data, entry.mode = files[name.removeprefix(f"{top}/")]
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), 9, mtime=0)


def write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """As a whole or not at all."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(data)
    new.chmod(mode)
    new.replace(path)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def installer(url: str) -> bytes:
    """scripts/install.sh, which knows where the release is if it was told."""
    text = (common.ROOT / "scripts/install.sh").read_text()
    unset = "default_url=''\n"
    assert text.count(unset) == 1, "scripts/install.sh has its line of the address"
    return text.replace(unset, f"default_url='{url.rstrip('/')}'\n").encode()


def formula(url: str, hashes: dict[str, str]) -> bytes:
    """The formula of Homebrew, filled in."""
    text = (common.ROOT / "packaging/homebrew/alight.rb").read_text()
    for mark, value in {"https://release.invalid": url.rstrip("/"), "@VERSION@": version()}.items():
        text = text.replace(mark, value)
    for target in TARGETS:
        text = text.replace(f"@{target}@", hashes[f"alight-{target}.tar.gz"])
    text = text[text.index("class "):]
    return text.encode()


def run(args) -> int:
    """Builds and packs; a table of what was made."""
    chosen = [target for target in TARGETS if any(part in target for part in args.targets or [""])]
    if not chosen:
        args.error(f"no such target; there are: {' '.join(TARGETS)}")
    if "'" in args.url or "\n" in args.url:
        args.error("an address has no quotes and no line breaks")
    out = args.out or folder()
    out.mkdir(parents=True, exist_ok=True)
    python = cross.zig_python()
    for target in chosen:
        if wrong := build(target, python):
            common.say(f"{target}: NOT LINKED: {wrong}")
            return 1
    when, hashes, rows = told_by_git()[1], {}, [["file", "bytes", "SHA-256"]]
    for target in chosen:
        name = f"alight-{target}.tar.gz"
        data = archive(f"alight-{version()}-{target}", contents(target, python), when)
        write(out / name, data)
        hashes[name] = sha256(data)
        rows.append([name, f"{len(data):,}", hashes[name]])
    write(out / "SHA256SUMS", "".join(f"{value}  {name}\n" for name, value in sorted(hashes.items())).encode())
    write(out / "install.sh", installer(args.url), 0o755)
    if args.url and len(chosen) == len(TARGETS):
        write(out / "alight.rb", formula(args.url, hashes))
    common.table(rows)
    return 0
