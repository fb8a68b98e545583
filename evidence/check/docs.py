"""The documentation holds together: every relative link and anchor leads somewhere, every page is in docs/SUMMARY.md, a page
that a file of the repository names is there, and so are source files and their items that a page names; no cell of a table is longer than 200 characters. Links of what is in an archive of `make dist` stay in that archive.

Pages are those of docs/ and the Markdown files beside README.md. A link of a page in docs/ stays in docs/, because a book is made
of that folder alone. Each rule is first tried on a small set of pages with a mistake in it, which it must find; if it does not, that
is the problem that is reported. Reads files and nothing else.
"""

import os
import re
import tempfile
from pathlib import Path
from urllib.parse import unquote

from evidence.lib import common
from evidence.make import dist

# Pages outside of docs/. The readers of these see the repository, not the book.
OUTSIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "bindings/python/README.md", "evidence/README.md", "examples/README.md")
# Where files name pages in passing, and which of them are looked into.
NAMING = ("bindings", "crates", "docs", "evidence", "examples", "fuzz", "packaging", "scripts", "tests", ".github")
TEXT = {".md", ".rs", ".py", ".pyi", ".toml", ".sh", ".cu", ".yml", ".html", ".js", ".nix"}
NOT_OURS = {"target", "models", "corpus", "data", "__pycache__", "node_modules"}
# It has pages with mistakes in it.
THIS = "evidence/check/docs.py"
SUMMARY = "docs/SUMMARY.md"
# Characters of a cell of a table, without the addresses of its links.
MAX_CELL = 200


def add_arguments(parser) -> None:
    """None."""


def prose(text: str) -> str:
    """A page without its blocks of code, whose lines stay as empty ones."""
    return re.sub(r"^( *)(```+|~~~+).*?^\1\2 *$", lambda block: "\n" * block[0].count("\n"), text, flags=re.M | re.S)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as the forges and mdBook make them."""
    found: dict[str, int] = {}
    out = set(re.findall(r"<\w+ (?:id|name)=\"([^\"]+)\"", text))
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", prose(text), re.M):
        heading = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        out.add(name if name not in found else f"{name}-{found[name]}")
        found[name] = found.get(name, 0) + 1
    return out


def links(text: str) -> list[tuple[int, str]]:
    """Where a page's links and pictures lead, with the lines that they are in."""
    text = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", lambda code: "\n" * code[0].count("\n"), prose(text), flags=re.S)
    found = []
    for pattern in (r"\]\(\s*<?([^)\s>]+)", r"^\[[^\]]+\]:\s*(\S+)", r"\b(?:src|srcset|href)=\"([^\"]+)\""):
        found += [(text.count("\n", 0, link.start()) + 1, link[1]) for link in re.finditer(pattern, text, re.M)]
    return sorted(found)


def naming(root: Path):
    """Every file that may name a page."""
    yield from (path for path in root.iterdir() if path.is_file() and (path.suffix in TEXT or path.name in ("Makefile", "Containerfile")))
    for top in NAMING:
        for folder, below, files in os.walk(root / top):
            below[:] = [name for name in below if name not in NOT_OURS and not name.startswith(".venv")]
            yield from (Path(folder, name) for name in files if Path(name).suffix in TEXT and Path(folder, name) != root / THIS)


def unknown_code(root: Path, text: str) -> list[str]:
    """Source files that a page names and that are not there; and of rows of tables that have a file and then items of it, the items that it
    does not define."""
    out = []
    for number, line in enumerate(prose(text).splitlines(), 1):
        for name in re.findall(r"`((?:crates|bindings|evidence|fuzz)/[\w./-]+\.(?:rs|py|pyi|toml))`", line):
            # A page on how to add a file calls it NAME.
            if "NAME" not in name and not (root / name).is_file():
                out.append(f"{number}: {name}: there is no such file")
        row = re.match(r"\| `([\w./-]+\.rs)` \| ((?:`\w+`(?:, )?)+) \|", line)
        if row and (root / row[1]).is_file():
            source = (root / row[1]).read_text()
            for item in re.findall(r"`(\w+)`", row[2]):
                if not re.search(rf"\b(?:fn|struct|enum|trait|type|const) {item}\b", source):
                    out.append(f"{number}: {row[1]} has no `{item}`")
    return out


def long_cells(text: str) -> list[str]:
    """Cells of tables that are too long to be read in one. Lists of names, as of options, may have any length."""
    out = []
    for number, line in enumerate(prose(text).splitlines(), 1):
        for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1]) if line.startswith("|") else ():
            shown = re.sub(r"\]\([^)]*\)", "]", cell.strip())
            is_list = not re.search(r"[A-Za-z]{3}", re.sub(r"`[^`]*`", "", shown))
            if len(shown) > MAX_CELL and not is_list:
                out.append(f"{number}: a cell of {len(shown)} characters, expected at most {MAX_CELL}: {shown[:40]}…: say the rest below the table")
    return out


def problems(root: Path, archived: set[str]) -> list[str]:
    """What is wrong with the documentation of the repository in `root`. `archived`: the files that a release has."""
    archived = archived | {str(parent) for name in archived for parent in Path(name).parents}
    pages = {path: path.read_text() for path in [*sorted((root / "docs").rglob("*.md")), *(root / name for name in OUTSIDE)] if path.is_file()}
    out = []
    for page, text in pages.items():
        where = page.relative_to(root)
        for line, link in links(text):
            if re.match(r"[a-z][a-z0-9+.-]*:", link):
                continue
            path, _, anchor = unquote(link).partition("#")
            target = Path(os.path.normpath(page.parent / path)) if path else page
            if not target.exists():
                out.append(f"{where}:{line}: {link}: there is no such file")
            elif where.parts[0] == "docs" and (root / "docs") not in target.parents:
                out.append(f"{where}:{line}: {link}: it leads out of docs/, where the book ends; name the file without a link")
            elif str(where) in archived and str(target.relative_to(root)) not in archived:
                out.append(f"{where}:{line}: {link}: that is not in the archives of `make dist`, and the page is")
            elif anchor and anchor not in anchors(pages.get(target) or (target.read_text() if target.suffix == ".md" else "")):
                out.append(f"{where}:{line}: {link}: no heading of {target.relative_to(root)} has this anchor")
    listed = [Path(os.path.normpath(root / "docs" / link)) for _, link in links(pages.get(root / SUMMARY, ""))]
    for page in pages:
        if (root / "docs") in page.parents and page != root / SUMMARY and listed.count(page) != 1:
            out.append(f"{page.relative_to(root)}: {SUMMARY} names it {'twice' if page in listed else 'nowhere'}, and has to name it once")
    for path in naming(root):
        text = path.read_text(errors="replace")
        for name in re.finditer(r"(?<![\w/.-])docs/[\w./-]*\.(?:md|svg)\b", text):
            if not (root / name[0]).is_file():
                out.append(f"{path.relative_to(root)}:{text.count(chr(10), 0, name.start()) + 1}: {name[0]}: there is no such file")
    for page, text in pages.items():
        out += [f"{page.relative_to(root)}:{problem}" for problem in [*unknown_code(root, text), *long_cells(text)]]
    # A link of README.md may have been found in both ways.
    return list(dict.fromkeys(out))


# Small repositories: what is in their files, and a word of what has to be said of them; of the first nothing.
GOOD = {
    "README.md": "See [one](docs/one.md#a-heading-of-one) and `[no](link)`.\n```\n[no](link)\n```\n",
    "docs/SUMMARY.md": "- [One](one.md)\n- [Two](deep/two.md)\n",
    "docs/one.md": "# One\n\n## A heading, of `one`\n\n[below](deep/two.md), [here](#one)\n",
    "docs/deep/two.md": "# Two\n![a picture](../one.svg)\n",
    "docs/one.svg": "<svg/>",
    "crates/a/src/lib.rs": "//! See docs/one.md.\nfn a() {}\n",
}
MISTAKES = [
    ({}, ""),
    ({"README.md": "[one](docs/none.md)"}, "README.md:1: docs/none.md: there is no such file"),
    ({"docs/deep/two.md": "# Two\n\n[one](one.md)"}, "docs/deep/two.md:3: one.md: there is no such file"),
    ({"docs/deep/two.md": '# Two\n\n<img src="../none.svg">'}, "docs/deep/two.md:3: ../none.svg: there is no such file"),
    ({"README.md": "[one](docs/one.md#a-heading)"}, "no heading of docs/one.md has this anchor"),
    ({"docs/one.md": "# One\n\n## A heading, of `one`\n\n[here](#tow)"}, "no heading of docs/one.md has this anchor"),
    ({"docs/one.md": "# One\n\n## A heading, of `one`\n\n[out](../README.md)"}, "leads out of docs/"),
    ({"docs/SUMMARY.md": "- [One](one.md)\n"}, "docs/deep/two.md: docs/SUMMARY.md names it nowhere"),
    ({"docs/SUMMARY.md": "- [One](one.md)\n- [Two](deep/two.md)\n- [One](one.md)\n"}, "docs/one.md: docs/SUMMARY.md names it twice"),
    ({"docs/SUMMARY.md": "- [One](one.md)\n- [Two](deep/two.md)\n- [Three](three.md)\n"}, "docs/SUMMARY.md:3: three.md: there is no such file"),
    ({"README.md": "[code](crates/a/src/lib.rs)"}, "README.md:1: crates/a/src/lib.rs: that is not in the archives"),
    ({"docs/one.md": "# One\n\n## A heading, of `one`\n\n| `crates/a/src/lib.rs` | `a` | it is there |\n"}, ""),
    ({"docs/one.md": "# One\n\n## A heading, of `one`\n\n`crates/b/src/lib.rs`\n"}, "docs/one.md:5: crates/b/src/lib.rs: there is no such file"),
    ({"docs/one.md": "# One\n\n## A heading, of `one`\n\n| `crates/a/src/lib.rs` | `a`, `b` | |\n"}, "docs/one.md:5: crates/a/src/lib.rs has no `b`"),
    ({"docs/one.md": "# One\n\n## A heading, of `one`\n\n| " + "words " * 40 + "|\n"}, "docs/one.md:5: a cell of 239 characters"),
    ({"docs/one.md": "# One\n\n## A heading, of `one`\n\n| " + "`--option`, " * 40 + "`--last` |\n"}, ""),
    ({"crates/a/src/lib.rs": "//! See docs/gone.md.\n"}, "crates/a/src/lib.rs:1: docs/gone.md: there is no such file"),
]


def unseen() -> list[str]:
    """The mistakes that the rules do not find, one of them at a time."""
    out = []
    for changed, expected in MISTAKES:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            for name, text in (GOOD | changed).items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            found = problems(root, {name for name in GOOD if not name.startswith("crates/")})
        if bool(found) != bool(expected) or any(expected not in line for line in found):
            out.append(f"evidence/check/docs.py: of pages with {changed or 'no mistake'} it said {found}, expected was {expected or 'nothing'!r}")
    return out


def run(args) -> int:
    """Prints each problem; the exit status."""
    found = unseen() or problems(common.ROOT, set(dist.documents()))
    print("\n".join([*found, f"docs: {len(list((common.ROOT / 'docs').rglob('*.md')))} pages, {len(found)} problems"]))
    return 1 if found else 0
