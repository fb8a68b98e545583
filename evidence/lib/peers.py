"""The engines that are measured beside each other: Alight, and native builds of others as folders of binaries.

A peer that is not built is named and left out, so that every measurement can be made of Alight alone.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from evidence.lib import common


@dataclass(frozen=True)
class Peer:
    """Another engine with llama.cpp's tools."""

    name: str
    option: str
    """Of the command line, and of the environment: --llama, $LLAMA_CPP_BIN."""
    variable: str
    folder: str
    """Where its binaries are by default, under the build folder."""
    maker: str
    answers: str = "llama-completion"
    """The tool that answers a prompt."""

    def bin(self, args) -> Path:
        given = getattr(args, self.option.replace("-", "_"), None)
        return given or Path(os.environ.get(self.variable, common.TARGET / self.folder))

    def has(self, args, tool: str) -> bool:
        return (self.bin(args) / tool).is_file()

    def tool(self, args, tool: str) -> Path:
        path = self.bin(args) / tool
        if not path.is_file():
            raise SystemExit(f"{path} is missing: {self.maker}, or set {self.variable}")
        return path.resolve()


LLAMA_CPP = Peer("llama.cpp", "llama", "LLAMA_CPP_BIN", "llama.cpp/bin", "scripts/build_llama_cpp.sh builds llama.cpp")
IK_LLAMA_CPP = Peer("ik_llama.cpp", "ik-llama", "IK_LLAMA_CPP_BIN", "ik_llama.cpp/bin", "build it as its own instructions say",
                    "llama-cli")
PEERS = (LLAMA_CPP, IK_LLAMA_CPP)
# Five tokens of each model, the begin-of-text token included where it has one.
PROMPTS = {
    "smollm2": "The capital of France is",
    "gemma3": "The capital of France",
    "3b": "bat wars sale bat",
    "7b": "bat sale bat",
}


def add_arguments(parser) -> None:
    for peer in PEERS:
        parser.add_argument(f"--{peer.option}", type=Path, metavar="FOLDER",
                            help=f"{peer.name}'s binaries (default: ${peer.variable} or target/{peer.folder})")
    parser.add_argument("--alone", action="store_true", help="without other engines")


def present(args, tool: str | None = None) -> list[Peer]:
    """The peers that have what is measured (`tool`; None: what answers); says so if llama.cpp is missing."""
    if args.alone:
        return []
    found = [peer for peer in PEERS if peer.has(args, tool or peer.answers)]
    if LLAMA_CPP not in found:
        common.say("llama.cpp is not built (make bench-peer): measuring " + ("without it" if found else "Alight alone"))
    return found


def alight_run(args, path: Path, prompt: str, *more, tokens: int | None = None, context: int = 2048) -> list[str]:
    """The command with which Alight continues a prompt, greedily; `tokens` None: without end of its own."""
    end = ["--ignore-eos"] if tokens is None else ["-n", tokens]
    return words(common.alight(args.alight), "run", path, "--raw", "--temp", 0, *end, "-c", context, "-t", args.threads, *more,
                 f"--prompt={prompt}")


def peer_run(args, peer: Peer, path: Path, prompt: str, *more, tokens: int | None = None, context: int = 2048) -> list[str]:
    """The same of a peer."""
    end = ["--ignore-eos", "-n", -1] if tokens is None else ["-n", tokens]
    conversation = ["-no-cnv"] if peer is LLAMA_CPP else []
    return words(peer.tool(args, peer.answers), "-m", path, *conversation, "--no-display-prompt", "--temp", 0, *end, "-c", context,
                 "-t", args.threads, *more, "-p", prompt)


def words(*command) -> list[str]:
    return [str(word) for word in command]
