"""`python -m evidence`: lists the commands, or runs one."""

import argparse
import ast
import sys
from pathlib import Path

from evidence.commands import COMMANDS, Command

GROUPS = dict.fromkeys(command.name.split()[0] for command in COMMANDS)


def table(markdown: bool = False) -> str:
    """All commands, a line each."""
    rows = [["command", "run by", "Python", "needs", "what it shows"]]
    for command in COMMANDS:
        name = f"`{command.name}`" if markdown else command.name
        rows.append([name, command.runs, command.python, command.needs, command.summary])
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = []
    for row in rows:
        if markdown:
            lines.append("| " + " | ".join(row) + " |")
        else:
            lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths)) + "  " + row[4])
    if markdown:
        lines.insert(1, "|" + "---|" * 5)
    return "\n".join(lines)


def parser_of(command: Command) -> argparse.ArgumentParser:
    """The parser of a command, with its options; imports its module."""
    module = command.load()
    parser = argparse.ArgumentParser(f"python -m evidence {command.name}", description=module.__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    module.add_arguments(parser)
    # What a command says of arguments that do not fit together, with the status of a wrong command line.
    parser.set_defaults(error=parser.error, command=command.name)
    return parser


def description(command: Command) -> str:
    """What a module says of itself, where what it imports is missing."""
    path = Path(__file__).parent.joinpath(*command.path().split(".")[1:]).with_suffix(".py")
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def main(argv: list[str]) -> int:
    """Runs what the arguments name; returns the exit status, which is 3 if this Python lacks a library."""
    if not argv or argv[0] in ("list", "-h", "--help", "help"):
        if "--write" in argv:
            readme = Path(__file__).with_name("README.md")
            readme.write_text(readme.read_text().partition("| command |")[0] + table(markdown=True) + "\n")
            return 0
        print("python -m evidence GROUP NAME [options]; --help after a name explains it\n"
              "python -m evidence test [--all]: the steps of `make test`, or of `make test-all`\n", file=sys.stderr)
        print(table())
        return 0
    if argv[0] == "test":
        from evidence import proof, steps

        return proof.main(steps.steps, argv[1:])
    if argv[0] == "selftest":
        from evidence.selftest import selftest

        return selftest()
    asked = " ".join(argv[:2])
    found = next((command for command in COMMANDS if command.name == asked), None)
    if not found:
        near = [command.name for command in COMMANDS if command.name.startswith(argv[0] + " ")] or [*GROUPS, "list", "selftest", "test"]
        print(f"python -m evidence: there is no `{asked}`; there is: {', '.join(near)}", file=sys.stderr)
        return 2
    try:
        parser = parser_of(found)
        args, args.rest = parser.parse_known_args(argv[2:])
        if args.rest and not getattr(found.load(), "PASSES_ON", False):
            parser.error(f"unrecognized arguments: {' '.join(args.rest)}")
        return found.load().run(args) or 0
    except ModuleNotFoundError as missing:
        if (missing.name or "evidence").startswith("evidence"):
            raise
        if {"-h", "--help"} & set(argv):
            print(description(found))
        print(f"{sys.executable} has no {missing.name}. `{found.name}` takes the Python of: {found.python}"
              f"{f'; it needs {found.needs}' if found.needs else ''}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
