"""A type's name is unique in its crate, unless it is the same thing.

Structs, enums, unions, traits and aliases of a crate's sources are counted by name, one for each file; tests are left out, as are aliases of
`Result`, which every module with an error of its own may have. `SAME` lists the names of things that are there more than once on purpose: a new
one fails, and so does an entry that is no longer needed. Reads the repository alone.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

from evidence.check.circles import without_tests
from evidence.lib import common

# Crate → name → why several files have it.
LEVEL, SYSTEM, FEATURE = "one for each SIMD level", "one for each operating system", "one with the feature `grammar`, one without"
SAME = {
    "chat": {"Compiler": FEATURE, "Grammar": FEATURE, "Mask": FEATURE},
    "kernels": {"Eight": LEVEL, "Group": LEVEL, "Scales": LEVEL},
    "rusage": {"Passed": SYSTEM, "Word": SYSTEM},
}
TYPE = re.compile(r"^([ \t]*)(?:pub(?:\([^)]*\))? )?(?:unsafe )?(struct|enum|union|trait|type) ([A-Z]\w*)", re.MULTILINE)


def add_arguments(parser) -> None:
    """Which crates."""
    parser.add_argument("crates", nargs="*", type=Path, help="folders of sources (default: those of the workspace)")


def declared(source: str) -> set[str]:
    """The types that a file declares outside of tests; an indented `type` is an associated one."""
    found = TYPE.findall(without_tests(source))
    return {name for indent, kind, name in found if not (kind == "type" and (indent or name == "Result"))}


def is_test(path: Path) -> bool:
    """Whether a file of `src` is compiled for tests only, by its name."""
    return "tests" in path.parts or path.stem == "tests" or path.stem.endswith("_tests")


def repeated(folder: Path) -> dict[str, list[str]]:
    """Of a crate's sources: name → the files that declare a type of this name, where there are several."""
    files = defaultdict(list)
    for path in sorted(folder.rglob("*.rs")):
        inside = path.relative_to(folder)
        if not is_test(inside):
            for name in declared(path.read_text()):
                files[name].append(str(inside))
    return {name: where for name, where in sorted(files.items()) if len(where) > 1}


def selftest() -> list[str]:
    """Types are found where they are declared, and nowhere else."""
    source = "pub(crate) struct A<'a>(&'a u8);\nunsafe trait B {\n    type C;\n}\ntype Result<T> = ();\ntype D = A;\n// struct E\nfn f() -> Result<A> {}\n"
    assert declared(source) == {"A", "B", "D"}
    assert declared("enum A {}\n#[cfg(test)]\nmod tests {\n    struct B;\n}\nmod inner {\n    struct C;\n}\n") == {"A", "C"}
    assert is_test(Path("output/family_tests.rs")) and is_test(Path("tests/common.rs")) and not is_test(Path("contests.rs"))
    return []


def run(args) -> int:
    """Prints each name that several types of a crate have; the exit status."""
    selftest()
    folders = args.crates or [*sorted(common.ROOT.glob("crates/*/src")), common.ROOT / "bindings/python/src"]
    wrong = 0
    for folder in folders:
        crate = folder.parent.name
        found, same = repeated(folder), SAME.get(crate, {})
        for name in sorted(found.keys() - same.keys()):
            wrong += 1
            where = ", ".join(found[name])
            print(f"{crate}: {len(found[name])} types are named {name}: {where}. Name each after what it is in the field's words", file=sys.stderr)
        for name in sorted(same.keys() - found.keys()):
            wrong += 1
            print(f"{crate}: only one type is named {name}; remove its entry from SAME in {Path(__file__).name}", file=sys.stderr)
    return 1 if wrong else 0
