"""What holds of the commands themselves: every module can be imported and explains its options; what it says of itself holds
(`selftest()`, of those that have one); the list says the truth about the Makefile; evidence/README.md is that list; no command is left out of it.

`make test` runs it as `python -S`, without any installed package: so no command needs one to say what it needs.
"""

import re
from pathlib import Path

from evidence import __main__ as main
from evidence.commands import BY_HAND, COMMANDS
from evidence.steps import BY_A_TEST

HERE = Path(__file__).parent
ROOT = HERE.parent


def recipes() -> dict[str, set[str]]:
    """The commands that each target of the Makefile runs."""
    found, targets = {}, []
    for line in (ROOT / "Makefile").read_text().splitlines():
        if rule := re.match(r"([^\s:#=][^:=]*):(?!=)", line):
            targets = rule[1].split()
        elif line.startswith("\t"):
            either = [line.replace("$(if $(filter test,$*),check,$*)", one) for one in ("check", "bench")]
            for name in re.findall(r"-m evidence (\w+ [\w-]+)", " ".join(either)):
                for target in targets:
                    found.setdefault(target, set()).add(name)
    return found


def problems() -> list[str]:
    """What is not as it should be."""
    out = []
    for command in COMMANDS:
        try:
            if not main.parser_of(command).format_help().strip():
                out.append(f"{command.name}: no help")
            if not callable(command.load().run):
                out.append(f"{command.name}: no run(args)")
            out += [f"{command.name}: {one}" for one in getattr(command.load(), "selftest", list)()]
        except Exception as error:  # whatever a module does wrong
            out.append(f"{command.name}: {type(error).__name__}: {error}")
    listed = {command.path() for command in COMMANDS}
    for path in sorted(HERE.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if "\ndef add_arguments(parser) -> None:\n" in path.read_text() and "\ndef run(args)" in path.read_text() and name not in listed:
            out.append(f"{name} is a command that evidence/commands.py does not name")
    in_makefile = recipes()
    for command in COMMANDS:
        if command.name in BY_A_TEST and command.name not in re.sub(r"\W+", " ", (ROOT / BY_A_TEST[command.name]).read_text()):
            out.append(f"{command.name}: {BY_A_TEST[command.name]} does not run it")
    everywhere = {name for names in in_makefile.values() for name in names}
    for command in COMMANDS:
        if command.target != BY_HAND and command.name not in everywhere:
            out.append(f"{command.name}: the Makefile does not run it")
    for name in sorted(everywhere - {command.name for command in COMMANDS}):
        out.append(f"the Makefile runs `{name}`, which there is not")
    if not (HERE / "README.md").read_text().endswith(main.table(markdown=True) + "\n"):
        out.append("evidence/README.md is not the list: python -m evidence list --write")
    return out


def selftest() -> int:
    """Prints what is wrong; the exit status."""
    found = problems()
    print("\n".join([*found, f"evidence: {len(COMMANDS)} commands, {len(found)} problems"]))
    return 1 if found else 0
