"""The kernels for AVX-VNNI and AVX-512 pass their tests on CPUs that this machine is not: each has one emulated by Bochs, instruction by instruction.

    git clone https://github.com/bochs-emu/Bochs         # or any copy of it; 3.0 or later
    cd Bochs/bochs && ./configure --enable-x86-64 --enable-cpu-level=6 --enable-avx --enable-evex --enable-amx \\
        --enable-all-optimizations --with-nogui --disable-docbook && make
    python -m evidence check x86-levels --bochs Bochs/bochs

Needed besides, from Debian: busybox-static, isolinux, syslinux-common, xorriso, and `apt-get download`, which fetches the kernel; and
`rustup target add x86_64-unknown-linux-musl`. A machine is started for each CPU. The emulator says nothing about speed.

AMX is left out: Linux hands its tiles to programs only where they can be switched off for each thread (XFD), which Bochs 3.0 does not know.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from evidence.lib import common, process, virtual
from evidence.lib.checks import Checks
from evidence.make import cross

TARGET = "x86_64-unknown-linux-musl"
# What Bochs calls a CPU, and the levels that the kernels have to find there.
CPUS = {
    "arrow_lake": "scalar avx2 avxvnni",
    "tigerlake": "scalar avx2 avx512",
}
# Files of tests, which are modules of one program.
TESTS = ("matmul", "attention", "float_ops", "independent", "quantize", "recurrent")

# In the machine, as its first process.
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin ALIGHT_TEST_FEW=1 RUST_TEST_THREADS=1
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
mkdir /tmp; mount -t tmpfs tmpfs /tmp
echo "== levels"; levels | tr '\\n' ' '; echo
for test in TESTS; do echo "== $test"; /bin/integration $test:: 2>&1; echo "status $?"; done
echo "== end"
while true; do sleep 1000; done
"""

# Bochs copies wrongly by `rep movsb` between ranges that overlap, which Linux does where a CPU says that it is fast (FSRM).
BOOT = """default alight
prompt 0
timeout 0
label alight
 kernel /vmlinuz
 append initrd=/initrd console=ttyS0 quiet rdinit=/init panic=-1 lpj=1000000 tsc=reliable nokaslr clearcpuid=fsrm
"""

MACHINE = """memory: guest=1024, host=1024
romimage: file={bochs}/bios/BIOS-bochs-latest
vgaromimage: file={bochs}/bios/VGABIOS-lgpl/VGABIOS-lgpl-latest.bin
cpu: model={cpu}, count=1, ips=20000000, reset_on_triple_fault=0
boot: cdrom
ata0: enabled=1
ata0-master: type=cdrom, path=disc.iso, status=inserted
com1: enabled=1, mode=file, dev=console-{cpu}.txt
display_library: nogui
panic: action=fatal
log: bochs-{cpu}.txt
clock: sync=none
"""


def programs() -> dict[str, Path]:
    """The tests, and the example that lists the levels, as static programs, by name."""
    environment = cross.environment_of_tests(TARGET, common.TARGET / "x86-levels")
    told = process.output(["cargo", "test", "--no-run", "--locked", "--message-format=json", "-p", "alight-kernels", "--target", TARGET, "--test", "integration"],
                          cwd=common.ROOT, env=environment)
    found = {}
    for line in told.splitlines():
        part = json.loads(line) if line.startswith("{") else {}
        if part.get("executable"):
            found[part["target"]["name"]] = Path(part["executable"])
    process.output(["cargo", "build", "--locked", "-p", "alight-kernels", "--target", TARGET, "--example", "levels"],
                   cwd=common.ROOT, env=environment)
    return found | {"levels": common.TARGET / "x86-levels" / TARGET / "debug/examples/levels"}


def disc(folder: Path, kernel: Path, tests: list[str]) -> None:
    """The disc that all machines start from."""
    root, content = folder / "root", folder / "disc"
    for place in (root, content):
        shutil.rmtree(place, ignore_errors=True)
    for name in ("bin", "proc", "sys", "dev"):
        (root / name).mkdir(parents=True)
    (content / "isolinux").mkdir(parents=True)
    shutil.copy2(virtual.need("busybox", "busybox-static"), root / "bin/busybox")
    for name, path in programs().items():
        shutil.copy2(path, root / "bin" / name)
    (root / "init").write_text(INIT.replace("TESTS", " ".join(tests)))
    (root / "init").chmod(0o755)
    virtual.archive(root, content / "initrd")
    shutil.copy2(next(kernel.glob("boot/vmlinuz-*")), content / "vmlinuz")
    for path, package in (("ISOLINUX/isolinux.bin", "isolinux"), ("syslinux/modules/bios/ldlinux.c32", "syslinux-common")):
        if not Path("/usr/lib", path).is_file():
            raise SystemExit(f"/usr/lib/{path} is missing (Debian: {package})")
        shutil.copy2(Path("/usr/lib", path), content / "isolinux")
    (content / "isolinux/isolinux.cfg").write_text(BOOT)
    process.output([virtual.need("xorriso", "xorriso"), "-as", "mkisofs", "-quiet", "-o", folder / "disc.iso", "-b", "isolinux/isolinux.bin",
                    "-c", "isolinux/boot.cat", "-no-emul-boot", "-boot-load-size", "4", "-boot-info-table", content])


def answers(folder: Path, bochs: Path, cpu: str, minutes: float) -> dict[str, str]:
    """Runs a machine until it has said all; what it said, by name."""
    settings, console = folder / f"{cpu}.bochsrc", folder / f"console-{cpu}.txt"
    settings.write_text(MACHINE.format(bochs=bochs, cpu=cpu))
    console.unlink(missing_ok=True)
    end = time.monotonic() + 60 * minutes
    with (folder / f"talk-{cpu}.txt").open("w") as talk:
        machine = subprocess.Popen([bochs / "bochs", "-q", "-f", settings], cwd=folder, stdin=subprocess.DEVNULL, stdout=talk, stderr=talk)
        try:
            text = ""
            while machine.poll() is None and time.monotonic() < end and "== end" not in text:
                time.sleep(1)
                text = console.read_text(errors="replace") if console.exists() else ""
        finally:
            machine.kill()
            machine.wait()
    parts = re.split(r"^== (\S+).*$", text.replace("\r", ""), flags=re.M)
    return dict(zip(parts[1::2], (part.strip() for part in parts[2::2])))


def add_arguments(parser) -> None:
    parser.add_argument("--bochs", type=Path, required=True, help="the folder where Bochs was built")
    parser.add_argument("--cpu", nargs="+", choices=CPUS, default=list(CPUS), help="CPUs (all)")
    parser.add_argument("--tests", nargs="+", choices=TESTS, default=list(TESTS), help="tests (all)")
    parser.add_argument("--minutes", type=float, default=120, help="the longest that one machine runs (%(default)s)")
    parser.add_argument("--package", default="linux-image-cloud-amd64", help="Debian's kernel (%(default)s)")


def run(args) -> int:
    bochs = args.bochs.resolve()
    if not (bochs / "bochs").is_file():
        raise SystemExit(f"{bochs}/bochs is missing: see python -m evidence check x86-levels --help")
    folder = common.TARGET / "x86-levels"
    folder.mkdir(parents=True, exist_ok=True)
    disc(folder, virtual.kernel(common.TARGET / "vm", args.package), args.tests)
    checks = Checks(out=sys.stdout)
    for cpu in args.cpu:
        begun = time.monotonic()
        common.say(f"starting {cpu}; its console is in {folder / f'console-{cpu}.txt'}")
        said = answers(folder, bochs, cpu, args.minutes)
        checks.add(said.get("levels") == CPUS[cpu], f"{cpu}: the levels are {said.get('levels')}")
        for test in args.tests:
            told = said.get(test, "nothing was said")
            passed = re.search(r"test result: ok\. (\d+) passed", told)
            good = passed is not None and told.endswith("status 0")
            checks.add(good, f"{cpu}: {test}: {passed[1]} tests" if good else f"{cpu}: {test}:\n{told[-4000:]}")
        checks.add("end" in said, f"{cpu}: came to its end, after {(time.monotonic() - begun) / 60:.0f} minutes")
    return checks.status()
