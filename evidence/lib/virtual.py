"""What a small virtual machine starts with: Debian's kernel, its modules, and a first filesystem."""

import lzma
import re
import shutil
import subprocess
from pathlib import Path


def need(name: str, package: str) -> str:
    found = shutil.which(name)
    if not found:
        raise SystemExit(f"{name} is missing (Debian: {package})")
    return found


def kernel(folder: Path, package: str) -> Path:
    """The unpacked kernel of a package; of a package that only names another, that one's."""
    place = folder / package
    if not list(place.glob("boot/vmlinuz-*")):
        need("apt-get", "it is Debian's")
        told = subprocess.run(["apt-cache", "depends", package], capture_output=True, text=True).stdout
        real = re.search(r"Depends: (linux-image-\S+)", told)
        place.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "-qq", "download", real.group(1) if real else package], cwd=place, check=True)
        subprocess.run(["dpkg-deb", "-x", *place.glob("*.deb"), place], check=True)
    return place


def modules(kernel: Path, wanted: list[str]) -> dict[str, bytes]:
    """The modules that are wanted, those that they need before them; what is built in is not among them."""
    paths = {path.name.split(".")[0].replace("-", "_"): path for path in kernel.glob("lib/modules/**/*.ko*")}
    taken: dict[str, bytes] = {}

    def add(name: str) -> None:
        path = paths.get(name)
        if path and name not in taken:
            data = lzma.open(path).read() if path.suffix == ".xz" else path.read_bytes()
            # As modinfo(8) has it.
            needs = re.search(rb"\0depends=([^\0]*)\0", data)
            for other in (needs.group(1).decode().split(",") if needs else []):
                add(other.replace("-", "_"))
            taken[name] = data

    for name in wanted:
        add(name)
    return taken


def archive(root: Path, to: Path) -> Path:
    """The folder as the first filesystem of a machine."""
    with to.open("wb") as out:
        names = subprocess.run(["find", "."], cwd=root, capture_output=True, check=True).stdout
        subprocess.run(["busybox", "cpio", "-o", "-H", "newc"], cwd=root, input=names, stdout=out,
                       stderr=subprocess.DEVNULL, check=True)
    return to
