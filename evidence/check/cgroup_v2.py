"""Proves in a small virtual machine what this machine's kernel may not have: `rusage --tree` by memory.peak of cgroup v2,
as root and as a user to whom a group was delegated, beside the sampling that takes its place elsewhere; and, on a kernel
without cachestat(2) (before 6.5), `rusage --cold` by mincore(2).

Needed, from Debian: qemu-system-x86, busybox-static, e2fsprogs, and `apt-get download`, which fetches the kernel package
(6.1 by default; `--package linux-image-6.12-cloud-amd64` is a newer one). The machine is emulated, so /dev/kvm is not
needed: it takes about a minute. The `rusage` is the static one of `make rusage`.

With `--alight FILE` also `alight cp` is tried there: that it copies, and leaves nothing in the page cache.

Not part of `make test`. What was seen is printed, a check a line; the exit status is 1 if one failed.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from evidence.lib import common, virtual
from evidence.lib.checks import Checks

MIB = 1 << 20
CHILDREN, EACH = 4, 32
COLD_MIB = 24
SECONDS = 420

# Uses a known amount of memory: COUNT children, each of which writes to MIB MiB and keeps them for a while. The
# children are there at the same time, as the parent waits for all of them after all were started.
HOLD = """
use std::process::Command;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [count, mib, millis] = [1, 2, 3].map(|i| args[i].parse::<usize>().unwrap());
    if count == 0 {
        let held = vec![1u8; mib << 20];
        std::thread::sleep(std::time::Duration::from_millis(millis as u64));
        assert!(std::hint::black_box(&held).iter().all(|&b| b == 1));
        return;
    }
    let one = || Command::new(&args[0]).args(["0", &args[2], &args[3]]).spawn().unwrap();
    let children: Vec<_> = (0..count).map(|_| one()).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
}
"""

# In the machine, as its first process. What is between `== NAME` and the next such line is the answer to NAME.
INIT = r"""#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
mkdir -p /tmp /disk; mount -t tmpfs tmpfs /tmp
for module in $(cat /modules); do insmod $module; done
mount -t ext4 /dev/vda /disk || echo "== broken: no disk"
chmod 777 /disk /tmp
HOLD="hold COUNT EACH 1500"
ask() { name=$1; shift; echo "== $name"; "$@" 2>&1; status=$?; echo "== status-$name"; echo $status; }
mkdir /etc; echo "user:x:1000:1000::/:/bin/sh" > /etc/passwd; echo "user:x:1000:" > /etc/group
as_user() { su user -c "$*"; }
C=/sys/fs/cgroup

echo; echo "== kernel"; uname -r
ask unmounted rusage --json --tree $HOLD
mount -t cgroup2 cgroup2 $C
ask undelegated rusage --json --tree $HOLD
echo +memory > $C/cgroup.subtree_control
ask root rusage --json --tree $HOLD
ask single rusage --json --tree hold 0 EACH 300
ask page_cache rusage --json --tree dd if=/dev/zero of=/disk/zeros bs=1M count=16
rm /disk/zeros
ask left_running rusage --json --tree sh -c 'sleep 5 >/dev/null 2>&1 & exit 3'
echo "== groups"; ls -d $C/rusage* 2>/dev/null | wc -l

# A group that belongs to a user, who is in a group of it: what systemd calls delegation.
mkdir -p $C/box/inside; echo +memory > $C/box/cgroup.subtree_control
for f in $C/box $C/box/inside; do chown 1000:1000 $f $f/cgroup.procs $f/cgroup.subtree_control; done
enter() { echo 0 > $1/cgroup.procs; shift; "$@"; }
(enter $C/box/inside ask user as_user rusage --json --tree $HOLD)
(ask user_undelegated as_user rusage --json --tree $HOLD)
echo "== user_groups"; ls $C/box | grep -c rusage

# A limit is not escaped from.
mkdir -p $C/tight; echo 300M > $C/tight/memory.max
(enter $C/tight ask limited rusage --json --tree $HOLD)

# The page cache, on a kernel of this age.
dd if=/dev/urandom of=/disk/cold bs=1M count=COLDMIB 2>/dev/null; sync; chown 1000 /disk/cold
cat /disk/cold > /dev/null
ask cold rusage --json --cold /disk/cold dd if=/disk/cold of=/dev/null bs=1M
cat /disk/cold > /dev/null
ask cold_user as_user rusage --json -o /tmp/cold.json --cold /disk/cold cat /disk/cold > /dev/null
echo "== cold_user"; cat /tmp/cold.json; rm /tmp/cold.json
echo text > /tmp/text
ask cold_tmpfs rusage --json --cold /tmp/text true
if [ -e /bin/alight ]; then
    rusage --cold /disk/cold true 2> /dev/null
    ask copy alight cp /disk/cold /disk/copy
    ask copy_cached rusage --json --cold /disk/cold --cold /disk/copy true
    echo "== copied"; cmp /disk/cold /disk/copy && echo same
fi
echo "== end"
sync; umount /disk; poweroff -f
"""


class Answers(Checks):
    """What the machine said, by name."""

    def __init__(self, text: str):
        super().__init__(out=sys.stdout)
        parts = re.split(r"^== (\S+).*$", text.replace("\r", ""), flags=re.M)
        self.of = dict(zip(parts[1::2], (part.strip() for part in parts[2::2])))

    def run(self, name: str) -> dict:
        """The account of the one run in the JSON of an answer."""
        for line in self.of.get(name, "").splitlines():
            if line.startswith('{"rusage"'):
                return json.loads(line)["runs"][0]
        return {}

    def check(self, what: str, holds: bool, seen: object) -> None:
        self.add(holds, f"{what}: {seen}")

    def tree(self, name: str, what: str, how: str, least: int, most: int) -> None:
        run = self.run(name)
        peak = run.get("tree_peak") or {}
        seen = f"{peak.get('bytes', 0) / MIB:.1f} MiB by {peak.get('how')}" + \
            (f", {peak['samples']} samples" if peak.get("samples") else "") + \
            f"; largest process {run.get('max_rss_bytes', 0) / MIB:.1f} MiB"
        within = peak.get("how") == how and least * MIB <= peak["bytes"] <= most * MIB
        self.check(f"{what}, expected {least} to {most} MiB by {how}", within, seen if run else self.of.get(name))

    def all(self, with_alight: bool) -> None:
        total = CHILDREN * EACH
        print(f"Linux {self.of.get('kernel')}; {CHILDREN} processes of {EACH} MiB each at the same time:")
        self.tree("unmounted", "cgroup v2 not mounted", "pss", total - 2, total + 4)
        self.tree("undelegated", "no memory controller", "pss", total - 2, total + 4)
        self.tree("root", "root", "cgroup", total, total + 8)
        self.tree("user", "a user with a delegated group", "cgroup", total, total + 8)
        self.tree("user_undelegated", "a user without one", "pss", total - 2, total + 4)
        self.tree("limited", "inside a limit, which is kept", "pss", total - 2, total + 4)
        self.tree("single", "one process alone", "cgroup", EACH, EACH + 4)
        self.tree("page_cache", "a file of 16 MiB is written", "cgroup", 16, 24)
        self.check("status of a command that leaves one running", self.of.get("status-left_running") == "3",
                   self.of.get("status-left_running"))
        for name in ("groups", "user_groups"):
            self.check(f"no group is left ({name})", self.of.get(name) == "0", self.of.get(name))
        old = tuple(int(n) for n in re.findall(r"\d+", self.of.get("kernel", "0.0"))[:2]) < (6, 5)
        for name in ("cold", "cold_user"):
            run = self.run(name)
            file = (run.get("evicted") or [{}])[0]
            proven = file.get("cached_before_bytes") == COLD_MIB * MIB and file["cached_after_bytes"] == 0
            self.check(f"--cold ({name}) evicts {COLD_MIB} MiB", proven, file)
            self.check("and says how that is known", file.get("how") == ("mincore" if old else "cachestat"),
                       file.get("how"))
            self.check("and they are read again", run.get("read_bytes", 0) >= COLD_MIB * MIB, run.get("read_bytes"))
        refused = self.of.get("status-cold_tmpfs") == "125" and "stay in the page cache" in self.of["cold_tmpfs"]
        self.check("--cold of a file on tmpfs is refused", refused, self.of.get("cold_tmpfs"))
        if with_alight:
            self.check("alight cp copies", self.of.get("copied") == "same", self.of.get("copied"))
            files = self.run("copy_cached").get("evicted") or []
            cached = [file["cached_before_bytes"] for file in files]
            self.check("and leaves nothing cached, of source and copy", cached == [0, 0], cached)
        self.check("the machine came to its end", "end" in self.of, list(self.of)[-1:])


# --- the machine ---------------------------------------------------------------------------------

def image(folder: Path, kernel: Path, rusage: Path, alight: Path | None) -> Path:
    """The first filesystem: busybox, what is tried, and the modules for a disk."""
    root = folder / "root"
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "proc", "sys", "dev"):
        (root / name).mkdir(parents=True)
    shutil.copy2(virtual.need("busybox", "busybox-static"), root / "bin/busybox")
    shutil.copy2(rusage, root / "bin/rusage")
    (folder / "hold.rs").write_text(HOLD)
    subprocess.run(["rustc", "--edition", "2024", "-O", "--target", "x86_64-unknown-linux-musl", folder / "hold.rs",
                    "-o", root / "bin/hold"], check=True)
    if alight:
        shutil.copy2(alight, root / "bin/alight")
        for library in re.findall(r"(/\S+)", subprocess.run(["ldd", alight], capture_output=True, text=True).stdout):
            (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(library, root / library[1:])
    taken = virtual.modules(kernel, ["virtio_pci", "virtio_blk", "ext4"])
    for name, data in taken.items():
        (root / f"{name}.ko").write_bytes(data)
    (root / "modules").write_text("".join(f"/{name}.ko\n" for name in taken))
    init = INIT.replace("COUNT", str(CHILDREN)).replace("EACH", str(EACH)).replace("COLDMIB", str(COLD_MIB))
    (root / "init").write_text(init)
    (root / "init").chmod(0o755)
    return virtual.archive(root, folder / "initrd")


def boot(folder: Path, kernel: Path, archive: Path, accel: str) -> str:
    """Runs the machine to its end; returns what it printed."""
    disk = folder / "disk"
    disk.unlink(missing_ok=True)
    with disk.open("wb") as file:
        file.truncate(256 * MIB)
    mkfs = shutil.which("mkfs.ext4") or "/sbin/mkfs.ext4"
    subprocess.run([mkfs, "-q", "-F", disk], check=True)
    command = [virtual.need("qemu-system-x86_64", "qemu-system-x86"), "-accel", accel, "-m", "768", "-smp", "2", "-nographic",
               "-no-reboot", "-nodefaults", "-serial", "stdio", "-kernel", next(kernel.glob("boot/vmlinuz-*")),
               "-initrd", archive, "-append", "console=ttyS0 quiet panic=-1 rdinit=/init",
               "-drive", f"file={disk},if=virtio,format=raw"]
    if accel == "tcg":
        command += ["-cpu", "max"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=SECONDS)
        text = done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as late:
        text = (late.stdout or b"").decode(errors="replace") + f"\n(ended after {SECONDS} s)"
    (folder / "console.txt").write_text(text)
    return text


def add_arguments(parser) -> None:
    parser.add_argument("--rusage", type=Path, default=common.TARGET / "x86_64-unknown-linux-musl/small/rusage")
    parser.add_argument("--alight", type=Path, help="also try `alight cp` of this program")
    parser.add_argument("--package", default="linux-image-cloud-amd64", help="Debian's kernel (%(default)s)")
    parser.add_argument("--accel", default="tcg", choices=["tcg", "kvm"], help="kvm is faster where it is to be had")


def run(arguments) -> int:
    if not arguments.rusage.is_file():
        raise SystemExit(f"{arguments.rusage} is missing: make rusage")
    folder = common.TARGET / "vm"
    folder.mkdir(parents=True, exist_ok=True)
    system = virtual.kernel(folder, arguments.package)
    archive = image(folder, system, arguments.rusage, arguments.alight)
    common.say(f"starting the machine; its console is in {folder / 'console.txt'} afterwards")
    answers = Answers(boot(folder, system, archive, arguments.accel))
    answers.all(arguments.alight is not None)
    return answers.status()
