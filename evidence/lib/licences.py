"""The packages that are compiled into `alight` for a target, with their licences, as Cargo and their sources tell."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tomllib
import uuid
from pathlib import Path

from evidence.lib import common

NAMES = ("LICEN", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")


class Missing(Exception):
    """A package has no licence, or none in its source."""


def packages(target: str, roots: tuple[str, ...] = ("alight", "rusage")) -> list[dict]:
    """Cargo's account of each package whose code is in the programs, with `needs`, the ids of those below it. What runs only while
    they are compiled (build scripts, macros, tests) is not in them."""
    told = subprocess.run(["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target],
                          cwd=common.ROOT, check=True, capture_output=True, text=True).stdout
    metadata = json.loads(told)
    by_id = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    is_macro = {key: any("proc-macro" in made["kind"] for made in package["targets"]) for key, package in by_id.items()}
    waiting = [key for key, package in by_id.items() if package["name"] in roots and package["source"] is None]
    found = {}
    while waiting:
        key = waiting.pop()
        if key in found:
            continue
        needs = [below["pkg"] for below in nodes[key]["deps"]
                 if any(kind["kind"] is None for kind in below["dep_kinds"]) and not is_macro[below["pkg"]]]
        found[key] = by_id[key] | {"needs": needs}
        waiting += needs
    return sorted(found.values(), key=lambda package: (package["name"], package["version"]))


def texts(package: dict) -> dict[str, str]:
    """The licence files in a package's source."""
    folder = Path(package["manifest_path"]).parent
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name.upper().startswith(NAMES))
    return {path.name: path.read_text(errors="replace").replace("\r\n", "\n").strip() for path in files}


def third_party(found: list[dict], more: dict[str, str]) -> str:
    """One text with every licence once, and the packages that it is of. `more`: what is in the program and no package."""
    users: dict[str, list[str]] = {}
    for package in found:
        if package["source"] is None:
            continue
        of_it = texts(package)
        if not of_it or not package["license"]:
            raise Missing(f"{package['name']} {package['version']} comes without a licence")
        for text in of_it.values():
            users.setdefault(text, []).append(f"{package['name']} {package['version']} ({package['license']})")
    for name, text in more.items():
        users.setdefault(text.strip(), []).append(name)
    line = "=" * 80
    parts = [f"{line}\n" + "\n".join(names) + f"\n{line}\n\n{text}\n" for text, names in sorted(users.items(), key=lambda item: item[1])]
    return "Alight is made with the works below. Of those that offer several licences, you may choose.\n\n" + "\n".join(parts)


def checksums() -> dict[tuple[str, str], str]:
    """SHA-256 of each package's source, from Cargo.lock."""
    lock = tomllib.loads((common.ROOT / "Cargo.lock").read_text())
    return {(package["name"], package["version"]): package["checksum"] for package in lock["package"] if "checksum" in package}


def sbom(found: list[dict], target: str, version: str, when: str, more: dict[str, tuple[str, str]]) -> str:
    """The same packages as CycloneDX 1.5. `more`: what is in the program and no package, with its version and licence."""
    hashes = checksums()

    def reference(package: dict) -> str:
        return f"pkg:cargo/{package['name']}@{package['version']}"

    def component(package: dict) -> dict:
        known = hashes.get((package["name"], package["version"]))
        return {
            "type": "library", "bom-ref": reference(package), "name": package["name"], "version": package["version"],
            "licenses": [{"expression": package["license"].replace("/", " OR ")}], "purl": reference(package),
        } | ({"hashes": [{"alg": "SHA-256", "content": known}]} if known else {})

    by_id = {package["id"]: reference(package) for package in found}
    root = f"pkg:cargo/alight@{version}"
    listed = [component(package) for package in found if reference(package) != root]
    listed += [{"type": "library", "bom-ref": name, "name": name, "version": of, "licenses": [{"expression": licence}]}
               for name, (of, licence) in more.items()]
    depends = [{"ref": reference(package), "dependsOn": sorted(by_id[key] for key in package["needs"])} for package in found]
    serial = uuid.UUID(bytes=hashlib.sha256(json.dumps([target, when, listed]).encode()).digest()[:16], version=4)
    return json.dumps({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{serial}", "version": 1,
        "metadata": {"timestamp": when, "component": {
            "type": "application", "bom-ref": root, "name": "alight", "version": version, "purl": root,
            "licenses": [{"expression": "Apache-2.0 OR MIT"}], "properties": [{"name": "target", "value": target}]}},
        "components": listed, "dependencies": depends,
    }, indent=1, ensure_ascii=False) + "\n"
