"""Modules of a crate do not import each other in a circle.

A module and its submodules count as one: the nodes are the modules that a crate's `lib.rs` or `main.rs` declares, the edges what their files name by
`crate::…` or by a `super::` that reaches the crate, an item that the root re-exports counting as an import of the module that has it. Tests are left out.
Reads the repository alone.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

from evidence.lib import common

COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\]|\\.)*"|r#*"(?:.*?)"#*', re.DOTALL)
DECLARED = re.compile(r"^(?:pub(?:\([a-z ]+\))? )?mod ([a-z_0-9]+)\s*[;{]", re.MULTILINE)
TEST = re.compile(r"#\[cfg\(test\)\]\s*(?:pub(?:\([a-z ]+\))? )?mod [a-z_0-9]+\s*([;{])")


def add_arguments(parser) -> None:
    """Which crates."""
    parser.add_argument("crates", nargs="*", type=Path, help="folders of sources (default: those of the workspace)")
    parser.add_argument("--edges", action="store_true", help="print every import from one module to another, too")


def without_tests(source: str) -> str:
    """A file's text without comments, strings and test modules."""
    source = COMMENT.sub(lambda found: "" if found[0].startswith("/") else '""', source)
    while found := TEST.search(source):
        end = found.end()
        if found[1] == "{":
            depth = 1
            while depth and end < len(source):
                depth += {"{": 1, "}": -1}.get(source[end], 0)
                end += 1
        source = source[: found.start()] + source[end:]
    return source


def leaves(tree: str) -> list[list[str]]:
    """The paths of a `use` tree, as lists of their segments: `a::{b, c::D}` has two."""
    tree = tree.strip()
    at = tree.find("{")
    if at < 0:
        return [[part.strip() for part in tree.split(" as ")[0].split("::")]]
    head = [part for part in tree[:at].split("::") if part.strip()]
    found, depth, start, inner = [], 0, 0, tree[at + 1 : tree.rfind("}")]
    for i, letter in enumerate(inner + ","):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            if inner[start:i].strip():
                found += [head + leaf for leaf in leaves(inner[start:i])]
            start = i + 1
    return found


def paths(source: str, module: list[str]) -> set[tuple[str, ...]]:
    """What a file of `module` names, as paths from the crate's root."""
    found = set()

    def add(path: list[str]) -> None:
        if path[0] in ("crate", "$crate"):
            found.add(tuple(path[1:]))
        elif path[0] == "super":
            ups = next((n for n, part in enumerate(path) if part != "super"), len(path))
            if ups <= len(module):
                found.add((*module[: len(module) - ups], *path[ups:]))

    uses = re.compile(r"\buse\s+((?:crate|super)\b[^;]*);")
    for use in uses.finditer(source):
        for leaf in leaves(" ".join(use[1].split())):
            add(leaf)
    for path in re.finditer(r"(?<![\w:])\$?((?:crate|super)(?:::\w+)+)", uses.sub("", source)):
        add(path[1].split("::"))
    return found


def imports(folder: Path) -> dict[str, dict[str, set[str]]]:
    """Of a crate's sources: module → module that it imports → the files that do."""
    root = next(folder / name for name in ("lib.rs", "main.rs") if (folder / name).exists())
    text = without_tests(root.read_text())
    modules = set(DECLARED.findall(text))
    exported = {}
    for use in re.finditer(r"\bpub(?:\([a-z ]+\))?\s+use\s+([^;]*);", text):
        for leaf in leaves(" ".join(use[1].split())):
            leaf = leaf[1:] if leaf[0] in ("crate", "self") else leaf
            if leaf[0] in modules:
                exported[leaf[-1]] = leaf[0]
    edges = defaultdict(lambda: defaultdict(set))
    for path in sorted(folder.rglob("*.rs")):
        parts = list(path.relative_to(folder).with_suffix("").parts)
        if parts[-1] == "mod":
            parts.pop()
        if parts[0] not in modules:
            continue
        for named in paths(without_tests(path.read_text()), parts):
            to = named[0] if named and named[0] in modules else exported.get(named[0] if named else "")
            if to and to != parts[0]:
                edges[parts[0]][to].add(str(path.relative_to(folder)))
    return edges


def circles(edges: dict[str, dict[str, set[str]]]) -> list[list[str]]:
    """Sets of modules each of which imports each other, directly or through others (Tarjan's strongly connected components)."""
    number, low, stack, found = {}, {}, [], []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for to in edges.get(module, {}):
            if to not in number:
                visit(to)
                low[module] = min(low[module], low[to])
            elif to in stack:
                low[module] = min(low[module], number[to])
        if low[module] == number[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for module in list(edges):
        if module not in number:
            visit(module)
    return found


def selftest() -> list[str]:
    """A circle made on purpose is found, and what is none is not."""
    assert leaves("crate::{a::{self, B}, c::D as E}") == [["crate", "a", "self"], ["crate", "a", "B"], ["crate", "c", "D"]]
    assert paths("use super::super::b::C; fn f() { crate::d::g() }", ["a", "inner"]) == {("b", "C"), ("d", "g")}
    source = 'use crate::a; // crate::b\n#[cfg(test)]\nmod tests { use crate::c; fn f() {} }\nfn g() { "crate::d" }'
    assert paths(without_tests(source), ["e"]) == {("a",)}
    assert circles({"a": {"b": set()}, "b": {"c": set()}, "c": {"a": set(), "d": set()}}) == [["a", "b", "c"]]
    assert circles({"a": {"b": set(), "c": set()}, "b": {"c": set()}}) == []
    return []


def run(args) -> int:
    """Prints each circle with the imports that make it; the exit status."""
    selftest()
    folders = args.crates or [*sorted(common.ROOT.glob("crates/*/src")), common.ROOT / "bindings/python/src"]
    count = 0
    for folder in folders:
        edges = imports(folder)
        if args.edges:
            for module in sorted(edges):
                print(f"{folder.parent.name}: {module} -> {', '.join(sorted(edges[module]))}")
        for circle in circles(edges):
            count += 1
            print(f"{folder.parent.name}: these modules import each other in a circle: {', '.join(circle)}", file=sys.stderr)
            for module in circle:
                for to in sorted(set(edges[module]) & set(circle)):
                    print(f"  {module} -> {to}: {', '.join(sorted(edges[module][to]))}", file=sys.stderr)
    if count:
        print("Move what both need below both (docs/explanation/architecture.md)", file=sys.stderr)
    return 1 if count else 0
