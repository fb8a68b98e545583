"""The installer, scripts/install.sh, against a server of this process: what it installs, and that nothing is half there when the
download, the archive or the folder is not as it should be.

The program in the archive is a small script, so that nothing has to be built; `--archive FOLDER` takes the real archives of
`make dist`. The server speaks HTTP on this machine. The script runs under every POSIX shell that is here (dash, busybox, bash),
with curl and with wget where they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

from evidence.lib import common
from evidence.lib.checks import Checks
from evidence.make import dist

SCRIPT = common.ROOT / "scripts/install.sh"
TARGET = f"{os.uname().machine}-unknown-linux-musl"
ARCHIVE, SUMS = f"alight-{TARGET}.tar.gz", "SHA256SUMS"
FAKE = b"#!/bin/sh\necho 'alight 9.9.9'\n"
SAYS = "alight 9.9.9"


def add_arguments(parser) -> None:
    parser.add_argument("--archive", type=Path, default=None, help="a folder with real archives and their SHA256SUMS")
    parser.add_argument("--verbose", action="store_true", help="say what holds, too")


class Server:
    """Files by their names. `cut`: send half of this file and close. `stall`: half, and then nothing."""

    def __init__(self, files: dict[str, bytes]):
        self.files, self.cut, self.stall, self.moved, self.asked = files, None, None, False, []
        self.stalled, self.released = threading.Event(), threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v9"

    def answer(self, to) -> None:
        folder, _, name = to.path.rpartition("/")
        self.asked.append(to.path)
        if self.moved and folder == "/v9":
            to.send_response(302)
            to.send_header("Location", f"/elsewhere/{name}")
            to.send_header("Content-Length", "0")
            to.end_headers()
            return
        body = self.files.get(name) if folder == ("/elsewhere" if self.moved else "/v9") else None
        if body is None:
            to.send_error(404)
            return
        to.send_response(200)
        to.send_header("Content-Length", str(len(body)))
        to.end_headers()
        half = name in (self.cut, self.stall)
        with contextlib.suppress(OSError):
            to.wfile.write(body[:len(body) // 2] if half else body)
            to.wfile.flush()
            if name == self.stall:
                self.stalled.set()
                self.released.wait(60)
        to.close_connection = True


def release(program: bytes = FAKE, top: str = f"alight-9.9.9-{TARGET}") -> dict[str, bytes]:
    """An archive as `make dist` writes it, with its hash."""
    files = {f"bin/{name}": (program, 0o755) for name in ("alight", "rusage")}
    files["share/man/man1/alight.1"] = (b".TH alight 1\n", 0o644)
    for shell, name in dist.SHELLS.items():
        files[f"share/completions/{shell}/{name}"] = (b"# completions\n", 0o644)
    return with_sums(dist.archive(top, files, 1_000_000_000))


def with_sums(archive: bytes) -> dict[str, bytes]:
    return {ARCHIVE: archive, SUMS: f"{hashlib.sha256(archive).hexdigest()}  {ARCHIVE}\n".encode()}


class Install:
    """Runs of the installer by one shell and one downloader, each with a home of its own."""

    def __init__(self, shell: list[str], tools: Path, checks: Checks, label: str, place: Path):
        self.shell, self.tools, self.checks, self.label, self.place, self.number = shell, tools, checks, label, place, 0

    def home(self) -> Path:
        self.number += 1
        home = self.place / f"{self.label}-{self.number}".replace(" ", "-")
        (home / "tmp").mkdir(parents=True)
        return home

    def environment(self, home: Path, url: str | None, **more: str) -> dict[str, str]:
        given = {} if url is None else {"ALIGHT_URL": url}
        return {"PATH": str(self.tools), "HOME": str(home), "TMPDIR": str(home / "tmp"), "no_proxy": "*"} | given | more

    def run(self, home: Path, url: str | None, **more: str) -> subprocess.CompletedProcess:
        """As `curl … | sh` does: the script comes through a pipe."""
        return subprocess.run([*self.shell, "-s"], input=SCRIPT.read_bytes(), capture_output=True, timeout=120, cwd=home,
                              env=self.environment(home, url, **more))

    def check(self, what: str, holds: bool, seen: object = "") -> None:
        self.checks.add(holds, f"{self.label}: {what}" + ("" if holds else f": {seen}"))

    def refuses(self, what: str, server: Server, word: str, home: Path | None = None, **more: str) -> None:
        """Status 1, a message with `word`, and no file that was not there."""
        home = home or self.home()
        before = listing(home)
        done = self.run(home, server.url, **more)
        message = done.stderr.decode(errors="replace")
        self.check(f"{what}: refused, and said", done.returncode == 1 and word in message and not done.stdout, (done.returncode, message))
        self.check(f"{what}: nothing is left", listing(home) == before, sorted(set(listing(home)) ^ set(before)))


def listing(folder: Path) -> dict[str, bytes | None]:
    """Every file with its bytes. An empty folder does not count: ~/.local/bin may be made."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def tools_folder(place: Path, without: tuple[str, ...], also: dict[str, str] | None = None) -> Path:
    """A PATH with all that this machine has but some; `also`: scripts that come first."""
    place.mkdir()
    for name, text in (also or {}).items():
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    for folder in ("/usr/local/bin", "/usr/bin", "/bin"):
        for path in Path(folder).glob("*"):
            link = place / path.name
            if path.name not in (*without, "alight", "rusage") and not link.exists() and not link.is_symlink():
                link.symlink_to(path)
    return place


def common_cases(install: Install, files: dict[str, bytes], says: str) -> None:
    """What holds with every shell and downloader."""
    server = Server(files)
    home = install.home()
    done = install.run(home, server.url)
    message = done.stderr.decode(errors="replace")
    bin_folder = home / ".local/bin"
    install.check("installs", done.returncode == 0 and not done.stdout, (done.returncode, done.stdout, message))
    told = subprocess.run([bin_folder / "alight", "--version"], capture_output=True, text=True).stdout if (bin_folder / "alight").is_file() else ""
    install.check("what is installed runs", told.startswith(says), told)
    install.check("it says what it did", f"{says.split()[0]} " in message and str(bin_folder) in message, message)
    install.check("it says that the folder is not in PATH", f'export PATH="{bin_folder}:$PATH"' in message, message)
    share = home / ".local/share"
    beside = ("man/man1/alight.1", "bash-completion/completions/alight", "zsh/site-functions/_alight", "fish/vendor_completions.d/alight.fish")
    install.check("manual pages and completions are beside it", all((share / name).is_file() for name in beside), listing(home).keys())
    install.check("no temporary file is left", not [name for name in listing(home) if ".new" in name or name.startswith("tmp/")], listing(home).keys())
    install.check("programs can be run by all, texts cannot", (bin_folder / "rusage").stat().st_mode & 0o777 == 0o755
                  and (share / beside[0]).stat().st_mode & 0o777 == 0o644)

    again = install.run(home, server.url, PATH=f"{bin_folder}:{install.tools}")
    install.check("again, over itself, and PATH is not spoken of", again.returncode == 0 and b"export PATH" not in again.stderr, again.stderr)
    done = install.run(install.home(), server.url, ALIGHT_INSTALL_DIR=str(home / "my folder"))
    install.check("into a folder of yours, and nothing beside it", done.returncode == 0 and sorted(
        path.name for path in (home / "my folder").iterdir()) == ["alight", "rusage"] and not (home / "share").exists(), done.stderr)
    server.moved = True
    done = install.run(install.home(), server.url)
    install.check("through a redirection, as releases have them", done.returncode == 0, done.stderr)
    server.moved = False

    wrong = Server(files | {SUMS: f"{'0' * 64}  {ARCHIVE}\n".encode()})
    install.refuses("a wrong hash", wrong, "SHA-256")
    install.refuses("a wrong hash, over an old version", wrong, "SHA-256", home)
    server.cut = ARCHIVE
    install.refuses("a connection that is cut", server, "could not be downloaded", home)
    server.cut = None
    install.refuses("no such archive", Server({SUMS: files[SUMS]}), "could not be downloaded", home)
    install.refuses("no checksums", Server({ARCHIVE: files[ARCHIVE]}), "SHA256SUMS could not", home)
    install.refuses("checksums without this archive", Server(files | {SUMS: b"0" * 64 + b"  other.tar.gz\n"}), "does not name", home)


def more_cases(install: Install, place: Path) -> None:
    """What does not depend on the shell."""
    files = release()
    home = install.home()
    install.check("it is installed, to be upgraded", install.run(home, Server(files).url).returncode == 0)
    install.refuses("a program that does not run", Server(release(b"#!/bin/sh\ntest \"${0##*/}\" = rusage\n")), "does not run", home)
    install.refuses("an archive without the program", Server(release(top="other")), "no alight", home)
    install.refuses("an archive that is none", Server(with_sums(b"not an archive")), "could not be unpacked", home)
    done = install.run(home, Server(release(FAKE.replace(b"9.9.9", b"9.9.10"))).url)
    told = subprocess.run([home / ".local/bin/alight"], capture_output=True, text=True).stdout
    install.check("an upgrade replaces what was there", done.returncode == 0 and told == "alight 9.9.10\n", (told, done.stderr))

    done = install.run(install.home(), None)
    install.check("without an address it says so", done.returncode == 1 and b"ALIGHT_URL" in done.stderr, done.stderr)
    blocked = install.home()
    (blocked / "file").write_bytes(b"")
    install.refuses("a folder that cannot be made", Server(files), "cannot be made", blocked, ALIGHT_INSTALL_DIR=str(blocked / "file/bin"))
    taken = install.home()
    (taken / "bin/alight").mkdir(parents=True)
    install.refuses("a folder in the place of the program", Server(files), "is a folder", taken, ALIGHT_INSTALL_DIR=str(taken / "bin"))
    # Root may write everywhere but where nobody can: proc.
    unwritable = install.home() / "closed"
    unwritable.mkdir(mode=0o555)
    closed = "/proc/self" if os.geteuid() == 0 else str(unwritable)
    install.refuses("a folder that cannot be written to", Server(files), "cannot be written", ALIGHT_INSTALL_DIR=closed)

    script = SCRIPT.read_bytes()
    for part in (0.3, 0.6, 0.9, 0.99):
        home = install.home()
        done = subprocess.run([*install.shell, "-s"], input=script[:int(len(script) * part)], capture_output=True, cwd=home, timeout=60,
                              env=install.environment(home, Server(files).url))
        install.check(f"of {part:.0%} of the script nothing is run", not listing(home) and b"downloading" not in done.stderr, done.stderr)
    script_cut = script[:script.rindex(b"main ")]
    home = install.home()
    subprocess.run([*install.shell, "-s"], input=script_cut, cwd=home, timeout=60, env=install.environment(home, Server(files).url))
    install.check("nor without its last line", not listing(home))

    for name, machine in (("x86_64", "x86_64"), ("aarch64", "aarch64"), ("arm64", "aarch64")):
        faked = tools_folder(place / f"uname-{name}", ("uname",), {"uname": f'#!/bin/sh\ntest "$1" = -s && echo Linux || echo {name}\n'})
        server = Server({SUMS: b""})
        server.files[SUMS] = f"{'0' * 64}  alight-{machine}-unknown-linux-musl.tar.gz\n".encode()
        install.run(install.home(), server.url, PATH=str(faked))
        install.check(f"on {name} it asks for {machine}", server.asked[-1:] == [f"/v9/alight-{machine}-unknown-linux-musl.tar.gz"], server.asked)
    for system, machine in (("Darwin", "arm64"), ("Linux", "riscv64")):
        faked = tools_folder(place / f"uname-{system}-{machine}", ("uname",),
                             {"uname": f'#!/bin/sh\ntest "$1" = -s && echo {system} || echo {machine}\n'})
        server = Server(files)
        install.refuses(f"{system} on {machine}", server, "build from the source", PATH=str(faked))
        install.check(f"{system} on {machine}: nothing was downloaded", not server.asked, server.asked)

    # Ctrl-C in the middle of the download.
    home, server = install.home(), Server(files)
    server.stall = ARCHIVE
    child = subprocess.Popen([*install.shell, str(SCRIPT)], cwd=home, env=install.environment(home, server.url), stderr=subprocess.DEVNULL,
                             start_new_session=True)
    reached = server.stalled.wait(60)
    os.killpg(child.pid, signal.SIGTERM)
    try:
        status = child.wait(60)
    finally:
        server.released.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    install.check("ended in the middle of a download: nothing is left", reached and status in (143, 1, -signal.SIGTERM) and not listing(home),
                  (reached, status, listing(home).keys()))


def run(args) -> int:
    """Every shell and downloader that is here; the exit status says whether all holds."""
    if os.uname().sysname != "Linux" or os.uname().machine not in ("x86_64", "aarch64"):
        print("check install: there are archives for Linux on x86_64 and aarch64")
        return 0
    checks = Checks(quiet=not args.verbose)
    files, says = release(), SAYS
    if args.archive:
        files, says = {name: (args.archive / name).read_bytes() for name in (ARCHIVE, SUMS)}, "alight "
    shells = [[path] for name in ("dash", "bash") if (path := shutil.which(name))] or [["/bin/sh"]]
    if busybox := shutil.which("busybox"):
        shells.append([busybox, "sh"])
    loaders = [name for name in ("curl", "wget") if shutil.which(name)]
    if not loaders:
        print("check install: neither curl nor wget is here; skipped")
        return 0
    with tempfile.TemporaryDirectory(prefix="alight-install-") as folder:
        place = Path(folder)
        first = None
        for loader in loaders:
            tools = tools_folder(place / f"tools-{loader}", tuple({"curl", "wget"} - {loader}))
            for shell in shells:
                install = Install(shell, tools, checks, f"{Path(shell[0]).name}, {loader}", place)
                common_cases(install, files, says)
                first = first or install
        more_cases(first, place)
    print(f"check install: {checks.passed} hold, {checks.failed} do not ({', '.join(Path(s[0]).name for s in shells)}; {', '.join(loaders)})")
    return checks.status()
