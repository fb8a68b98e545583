"""What holds of the commands themselves: every module can be imported and explains its options; what it says of itself holds
(`selftest()`, of those that have one); the list says the truth about the Makefile; evidence/README.md is that list; no command is left out of it.

`make lint` runs it as `python -S`, without any installed package: so no command needs one to say what it needs.
"""

import re
from pathlib import Path

from evidence import __main__ as main
from evidence.commands import CI, COMMANDS

HERE = Path(__file__).parent
ROOT = HERE.parent
# What `make test` runs by another way than a recipe of the Makefile.
BY_A_TEST = {"make legacy": "crates/formats/tests/ggml_by_another_hand.rs"}


def recipes() -> dict[str, set[str]]:
    """The commands that each target of the Makefile runs."""
    found, targets = {}, []
    for line in (ROOT / "Makefile").read_text().splitlines():
        if rule := re.match(r"([^\s:#=][^:=]*):(?!=)", line):
            targets = rule[1].split()
        elif line.startswith("\t"):
            line = line.replace("$(if $(filter test,$*),check,$*)", "check")
            for name in re.findall(r"-m evidence (\w+ [\w-]+)", line):
                for target in targets:
                    found.setdefault(target, set()).add(name)
    return found


def tested() -> set[str]:
    """The targets of `make test`: what it needs, and what its recipe makes."""
    text = (ROOT / "Makefile").read_text()
    return set(re.search(r"^test: (.*(?:\n\t.*)*)$", text, re.M)[1].split())


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
    in_test = {name for target, names in in_makefile.items() if target in tested() for name in names}
    for command in COMMANDS:
        if command.name in BY_A_TEST:
            if command.name not in re.sub(r"\W+", " ", (ROOT / BY_A_TEST[command.name]).read_text()):
                out.append(f"{command.name}: {BY_A_TEST[command.name]} does not run it")
        elif (command.runs == CI) != (command.name in in_test):
            out.append(f"{command.name}: `make test` {'does not run' if command.runs == CI else 'runs'} it")
    everywhere = {name for names in in_makefile.values() for name in names}
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
