"""What a person does with the chats of the page: several at once, in several tabs, kept, found, renamed, deleted and branched."""

from __future__ import annotations

import json
from pathlib import Path

from evidence.lib.browser import Browser, wait_for
from evidence.lib.checks import Checks

ENTER, ESCAPE = "\ue007", "\ue00c"
# SmolLM2 answers these at length.
STORY = "Write a very long story about the sea."
ONE, TWO = (f"Write a very long story about the sea, tab {n}." for n in ("one", "two"))

# Nothing is being answered in the chat that is looked at, and its last answer is there.
IDLE = "return document.getElementById('stop').hidden && document.querySelector('.message.assistant:last-of-type .actions *') !== null"
LAST = "return [...document.querySelectorAll('.message.assistant > .text')].at(-1)?.textContent ?? ''"
NAMES = "return [...document.querySelectorAll('#conversations .title-text')].map(e => e.textContent)"
# Records what the page sends, and sends it.
SPY = """
window.bodies = [];
const send = window.fetch;
window.fetch = (path, options) => { if (options?.body) window.bodies.push(JSON.parse(options.body)); return send(path, options); };
"""


def setting(page: Browser, **values) -> None:
    """Changes fields of the settings; `set_seed` is that of `set-seed`."""
    page.click("#open-settings")
    for name, value in values.items():
        name = name.replace("set_", "set-").replace("chat_", "chat-")
        page.run("const e = document.getElementById(arguments[0]); e.value = arguments[1]; e.dispatchEvent(new Event('change'))", name, value)
    page.click("#settings .close")


def ask(page: Browser, text: str, new: bool = True) -> None:
    """Asks, in a new chat or in this one."""
    if new:
        page.click("#new")
    page.run("document.getElementById('ask').value = arguments[0]", text)
    page.type("#ask", ENTER)


def until_written(page: Browser, n: int = 20) -> str:
    """The last answer, once it has some letters."""
    page.until(f"{LAST.replace('return', 'return (')}).length > {n}")
    return page.run(LAST)


def choose(page: Browser, name: str) -> None:
    """Chooses a chat by its title."""
    page.run("[...document.querySelectorAll('#conversations .name')].find(e => e.title === arguments[0]).click()", name)


def press(page: Browser, label: str, which: str = "") -> None:
    """Presses the last button whose label begins so."""
    page.run("[...document.querySelectorAll(`${arguments[1]} button[aria-label^='${arguments[0]}']`)].at(-1).click()", label, which)


def reload(page: Browser) -> None:
    """Loads the page again."""
    page.go(page.run("return location.href"))
    page.until("return typeof Alight === 'object' && document.getElementById('model').options.length > 0")


def at_once(page: Browser, checks: Checks) -> None:
    """Two answers in progress, each of its own chat."""
    setting(page, set_max_tokens="4000", set_temperature="0")
    ask(page, STORY)
    first = until_written(page)
    page.click("#new")
    free = page.run("return [document.getElementById('send').disabled, document.getElementById('stop').hidden]")
    checks.add(free == [False, True], f"Stop and Send belong to their chat: another one is free ({free})")
    page.run("document.getElementById('ask').value = 'a draft'")
    choose(page, STORY)
    checks.add(page.run("return document.getElementById('ask').value") == "", "what is not sent yet stays in its chat")
    grown = page.run(LAST)
    checks.add(grown.startswith(first), "an answer in progress is there when its chat is looked at again")
    checks.add(page.run("return document.getElementById('send').disabled"), "nothing is sent in a chat that is being answered")
    page.click("#new")
    checks.add(page.run("return document.getElementById('ask').value") == "a draft", "a draft is there again")
    ask(page, "Tell me a long tale of two cities.", new=False)
    until_written(page)
    busy = page.run("return document.querySelectorAll('#conversations .busy').length")
    checks.add(busy == 2, f"the list shows which chats are being answered ({busy})")
    page.keys(ESCAPE)
    page.until(IDLE)
    page.until("return document.querySelectorAll('#conversations .busy').length === 1")
    choose(page, STORY)
    longer = page.run(LAST)
    page.until("return [...document.querySelectorAll('.message.assistant > .text')].at(-1).textContent.length > arguments[0]", len(longer))
    checks.add(len(longer) > len(grown), "the other answer went on meanwhile, and goes on after this one was stopped")
    page.click("#stop")
    page.until(IDLE)
    checks.add("stopped" in page.text(".message.assistant .numbers"), "Stop stops the answer of its chat")


def kept_through_a_reload(page: Browser, checks: Checks) -> None:
    """The page is loaded again while an answer comes."""
    ask(page, STORY + " Begin with a lighthouse.")
    before = until_written(page, 60)
    reload(page)
    page.until("return document.querySelector('.message.assistant button[aria-label^=Continue]') !== null")
    kept = page.run(LAST)
    checks.add(kept.startswith(before), f"an answer outlives a reload ({len(before)} letters before, {len(kept)} after)")
    checks.add("the page was closed" in page.text(".message.assistant .numbers"), "the page says why the answer ends there")
    page.run(SPY)
    press(page, "Continue")
    page.until("return [...document.querySelectorAll('.message.assistant > .text')].at(-1).textContent.length > arguments[0] + 20", len(kept))
    body = page.run("return window.bodies[0]")
    same = body["messages"][-1]["role"] == "assistant" and body["continue_final_message"] is True
    checks.add(page.run(LAST).startswith(kept.rstrip()) and same, "Continue goes on where the answer ended")
    page.keys(ESCAPE)
    page.until(IDLE)


def two_tabs(page: Browser, checks: Checks) -> None:
    """Two tabs of the same browser lose nothing of each other."""
    setting(page, set_max_tokens="4000", set_temperature="0")
    address = page.run("return location.href")
    one = page.window()
    two = page.open_tab(address)
    page.until("return document.getElementById('model').options.length > 0")
    page.switch(one)
    ask(page, ONE)
    until_written(page)
    page.switch(two)
    ask(page, TWO)
    until_written(page)
    page.until(f"{NAMES}.filter(t => t.includes(', tab ')).length === 2")
    checks.add(True, "each tab lists the chat of the other")
    choose(page, ONE)
    page.until("return document.getElementById('status').textContent === 'Answered in another tab'")
    seen = until_written(page)
    page.until("return [...document.querySelectorAll('.message.assistant > .text')].at(-1).textContent.length > arguments[0]", len(seen))
    checks.add(True, "an answer of the other tab is seen as it grows")
    page.click("#stop")
    page.until(IDLE)
    checks.add("stopped" in page.text(".message.assistant .numbers"), "Stop stops the answer of another tab")
    page.switch(one)
    page.until(IDLE)
    setting(page, set_max_tokens="4")
    ask(page, "And one more from tab one.", new=False)
    page.until(IDLE)
    page.switch(two)
    page.until("return [...document.querySelectorAll('.message.user > .text')].at(-1).textContent === 'And one more from tab one.'")
    page.until(IDLE)
    checks.add(True, "what one tab adds to a chat is seen in the other")
    choose(page, TWO)
    page.keys(ESCAPE)
    page.until(IDLE)
    page.close()
    page.switch(one)
    reload(page)
    names = page.run(NAMES)
    checks.add({ONE, TWO} <= set(names), f"the chats of both tabs are kept: {names[:3]}")


def merged(page: Browser, checks: Checks) -> None:
    """Copies of a conversation that were continued apart."""
    found = page.run("""
        const t = Alight.conversation, one = t.create('');
        t.add(one, {role: 'user', content: 'q'});
        const copy = t.checked(JSON.parse(JSON.stringify(one)));
        t.add(one, {role: 'assistant', content: 'a1'});
        const other = t.add(copy, {role: 'assistant', content: 'a2'});
        [copy.title, copy.titled] = ['renamed there', Date.now() + 1];
        t.merge(one, copy);
        return [one.nodes.map(n => n.content), t.path(one).map(n => n.content), one.title, t.versions(one, one.nodes[1]).length];
    """)
    checks.add(found == [["q", "a1", "a2"], ["q", "a1"], "renamed there", 2], f"two copies of a conversation become one with the messages of both: {found}")


def failed(page: Browser, checks: Checks) -> None:
    """A request that the server refuses."""
    page.run(SPY)
    setting(page, tools='{"a": 1}', set_max_tokens="4")
    ask(page, "What is one and one?")
    page.until("return document.querySelector('.message .failed') !== null")
    checks.add("tools" in page.text(".message .failed"), f"a refused request says why: {page.text('.message .failed')}")
    press(page, "Ask again")
    page.until("return document.getElementById('stop').hidden && document.querySelector('.message .failed') !== null")
    checks.add(page.run("return document.querySelectorAll('.message').length") == 2 and not page.text(".version"), "what has failed is asked again in its place")
    # The model's template shows no tools.
    setting(page, tools='[{"type": "function", "function": {"name": "add"}}]')
    ask(page, "And three and three?")
    page.until("return document.querySelector('.message .warned') !== null")
    checks.add("described in words" in page.text(".message .warned"), f"a warning stands below its answer: {page.text('.message .warned')}")
    setting(page, tools="")
    choose(page, "What is one and one?")
    ask(page, "And two and two?", new=False)
    page.until("return document.getElementById('stop').hidden && document.querySelectorAll('.message.assistant .numbers').length > 0")
    sent = page.run("return window.bodies.at(-1).messages")
    checks.add([m["role"] for m in sent] == ["user", "user"] and all(m["content"] for m in sent), f"an answer that has failed is not sent as an empty message: {sent}")
    press(page, "Ask again")
    page.until("return document.querySelectorAll('.message').length === 2")
    page.until(IDLE)
    press(page, "Earlier version")
    checks.add("And two and two?" in page.text(".message > .text"), "what was asked after it is not lost")
    checks.wrong("nothing else has failed", [line for line in page.errors() if "400 (Bad Request)" not in line])


def branches(page: Browser, checks: Checks) -> None:
    """Edit and Regenerate make versions, and lose none."""
    setting(page, set_max_tokens="6", set_seed="7")
    ask(page, "Name a bird.")
    page.until(IDLE)
    first = page.run(LAST)
    press(page, "Edit")
    page.run("document.querySelector('.message.user textarea').value = 'Never sent.'")
    page.type(".message.user textarea", ESCAPE)
    checks.add(page.text(".message.user > .text") == "Name a bird.", "Escape leaves an edited message as it was")
    press(page, "Edit")
    page.run("document.querySelector('.message.user textarea').value = 'Name three colours of a flag.'")
    page.type(".message.user textarea", ENTER)
    page.until("return document.querySelector('.message.user > .text').textContent === 'Name three colours of a flag.'")
    page.until(IDLE)
    second = page.run(LAST)
    checks.add("2/2" in page.text(".message.user .actions"), "Enter sends an edited message, as another version")
    press(page, "Answer again")
    page.until("return document.querySelector('.message.assistant .actions').textContent.includes('2/2')")
    page.until(IDLE)
    press(page, "Earlier version", ".message.assistant")
    checks.add("1/2" in page.text(".message.assistant .actions") and page.run(LAST) == second, "the earlier answer is there again")
    press(page, "Earlier version", ".message.user")
    checks.add([page.text(".message.user > .text"), page.run(LAST)] == ["Name a bird.", first], "the earlier question and its answer are there again")
    reload(page)
    checks.add(page.run(LAST) == first and "1/2" in page.text(".message.user .actions"), "versions are kept, and so is the one that is shown")
    page.allow_clipboard()
    press(page, "Copy this message")
    page.until("return [...document.querySelectorAll('.message.user button')].some(e => e.textContent === 'Copied')")
    checks.add(page.run("return navigator.clipboard.readText()") == "Name a bird.", "an own message can be copied")
    checks.add(page.text(".message.assistant .who") == page.run("return document.getElementById('model').value"), "an answer has the name of its model")


def listed(page: Browser, checks: Checks, folder: Path) -> None:
    """Rename, find, delete and take back, save and open."""
    long = "# Please explain **in detail** how a `hash table` works, and why its buckets may become long, with an example in Rust\n\nand more"
    ask(page, long)
    page.until(IDLE)
    title = page.run(NAMES)[0]
    checks.add(title == "Please explain in detail how a hash table works, and why its buckets may become…", f"a title is cut between words: {title}")
    checks.add(page.run("return document.title") == f"{title} – Alight", "the tab of the browser has the title")
    lines = page.run("const e = document.querySelector('.title-text'); return e.clientHeight / parseFloat(getComputedStyle(e).lineHeight)")
    checks.add(1.5 < lines < 2.5, f"a long title has two lines in the list ({lines:.1f})")
    press(page, f"Rename the conversation {title}")
    page.run("document.querySelector('#conversations input').value = ''")
    page.type("#conversations input", "Hash tables" + ENTER)
    checks.add(page.run(NAMES)[0] == "Hash tables", "a conversation is renamed")
    press(page, "Rename the conversation Hash tables")
    page.type("#conversations input", "Never" + ESCAPE)
    checks.add(page.run(NAMES)[0] == "Hash tables", "Escape leaves the title")
    ask(page, "Something more.", new=False)
    page.until(IDLE)
    checks.add(page.run(NAMES)[0] == "Hash tables", "a title of a person's stays")

    page.type("#search", "buckets RUST")
    checks.add(page.run(NAMES) == ["Hash tables"], f"a conversation is found by the words in it: {page.run(NAMES)}")
    page.type("#search", " zebra")
    checks.add(page.run(NAMES) == [] and "No conversation" in page.text("#conversations"), "what is nowhere is not found")
    page.type("#search", ESCAPE)
    before = page.run(NAMES)
    checks.add(len(before) > 1, "Escape shows all conversations again")

    press(page, "Delete the conversation Hash tables")
    checks.add("Hash tables" not in page.run(NAMES) and "Deleted: Hash tables" in page.text("#toast"), "a conversation is deleted")
    page.click("#undo")
    checks.add(page.run(NAMES) == before and len(page.run("return [...document.querySelectorAll('.message')]")) == 4, "and is there again by Undo, with its messages")
    page.click("#open-settings")
    page.click("#forget")
    checks.add(page.run(NAMES) == ["New chat"] and not page.run("return Object.keys(localStorage).filter(k => k.startsWith('alight.chat.'))"), "all conversations are deleted")
    page.click("#undo")
    checks.add(page.run(NAMES) == before, "and are there again by Undo")

    page.downloads(folder)
    page.click("#export-all")
    file = folder / "conversations.json"
    wait_for(lambda: file.exists() and file.stat().st_size > 0, f"{file} is written")
    saved = json.loads(file.read_text())
    checks.add(len(saved["conversations"]) == len(before), "all conversations are saved to a file")
    page.click("#forget")
    page.files("#files", file)
    page.until(f"{NAMES}.length === arguments[0]", len(before))
    checks.add(page.run(NAMES) == before, "and come back from it")
    other = folder / "from elsewhere.json"
    other.write_text(json.dumps([{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}, {"role": "assistant", "content": "Hello."}]))
    page.files("#files", other)
    page.until(f"{NAMES}[0] === 'from elsewhere'")
    shown = [page.text(".message > .text"), page.run("return document.getElementById('chat-system').value")]
    checks.add(shown == ["Hi\nHello.", "Be brief."], f"a list of messages of another program is opened: {shown}")
    bad = folder / "bad.json"
    bad.write_text('{"a": 1}')
    page.files("#files", bad)
    page.until("return !document.getElementById('notice').hidden")
    checks.add("'bad.json' has no conversation" in page.text("#notice"), f"a file without conversations is refused: {page.text('#notice')}")
    page.click("#settings .close")


def own_system_prompt(page: Browser, checks: Checks) -> None:
    """A system prompt for each chat."""
    page.run(SPY)
    page.click("#new")
    setting(page, system="Speak like a sailor.")
    ask(page, "One")
    page.until(IDLE)
    setting(page, chat_system="Speak like a pirate.")
    ask(page, "Two", new=False)
    page.until(IDLE)
    page.click("#new")
    setting(page, chat_system="")
    ask(page, "Three", new=False)
    page.until(IDLE)
    firsts = [body["messages"][0] for body in page.run("return window.bodies")]
    wanted = [("system", "Speak like a sailor."), ("system", "Speak like a pirate."), ("user", "Three")]
    checks.add([(m["role"], m["content"]) for m in firsts] == wanted, f"each chat has its own system prompt: {firsts}")
    setting(page, system="")


def migrated(page: Browser, checks: Checks) -> None:
    """What an older page has kept."""
    for size, what in ((10, "conversations of an older page"), (3_000_000, "those that fill more than half of the storage")):
        page.run("""
            localStorage.clear();
            const [size] = arguments, older = ['b', 'a'].map((name, i) => ({id: `${1700000000000 - i}-0.5${i}`, title: `Older ${name}`,
              messages: [{role: 'user', content: name.repeat(i ? size : 3)}, {role: 'assistant', content: 'yes', shown: {numbers: '3 generated'}}]}));
            localStorage.setItem('alight.system', 'Be old.');
            localStorage.setItem('alight.conversations', JSON.stringify(older));
        """, size)
        reload(page)
        names = [name for name in page.run(NAMES) if name != "New chat"]
        kept = page.run("return [localStorage.getItem('alight.conversations'), Object.keys(localStorage).filter(k => k.startsWith('alight.chat.')).length]")
        choose(page, "Older b")
        shown = [page.text(".message > .text"), page.text(".message .numbers"), page.run("return document.getElementById('chat-system').value")]
        good = names == ["Older b", "Older a"] and kept == [None, 2] and shown == ["bbb\nyes", "3 generated", "Be old."]
        checks.add(good, f"{what} are taken over: {names} {kept} {shown}")
    page.run("localStorage.clear()")
    reload(page)


def full_storage(page: Browser, checks: Checks) -> None:
    """A browser whose storage is full."""
    setting(page, set_max_tokens="4")
    page.run("for (let n = 1 << 22; n >= 1; n >>= 1) { try { localStorage.setItem(`junk${n}`, 'x'.repeat(n)); } catch {} }")
    ask(page, "Is this kept?")
    page.until(IDLE)
    checks.add("keeps no more" in page.text("#notice"), f"a full storage is reported: {page.text('#notice')}")
    page.run("Object.keys(localStorage).filter(k => k.startsWith('junk')).forEach(k => localStorage.removeItem(k))")
    ask(page, "And now?", new=False)
    page.until(IDLE)
    reload(page)
    checks.add("Is this kept?" in page.text(".message.user > .text"), "and nothing is lost while the page is open")


# Keeps a conversation as another tab would have kept it.
KEPT = """
const t = Alight.conversation, one = t.create('');
one.title = arguments[0];
t.add(one, {role: 'user', content: 'a question'});
t.add(one, {role: 'assistant', content: 'A piece of', ...arguments[1]});
localStorage.setItem('alight.chat.' + one.id, JSON.stringify(one));
"""


def of_a_page_that_is_gone(page: Browser, checks: Checks) -> None:
    """A tab that has ended without a word, as in a crash."""
    page.run(KEPT, "Crashed", {"shown": {"running": "no page has this name"}})
    reload(page)
    choose(page, "Crashed")
    page.until("return document.querySelector('.message.assistant button[aria-label^=Continue]') !== null")
    shown = [page.run(LAST), page.text(".message.assistant .numbers"), page.run("return document.getElementById('stop').hidden")]
    checks.add(shown == ["A piece of", "the page was closed", True], f"an answer of a page that is gone has ended, and can be continued: {shown}")


def given_results(page: Browser, checks: Checks) -> None:
    """Results of two calls."""
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": f"f{n}", "arguments": "{}"}} for n in (1, 2)]
    page.run(KEPT, "Called", {"content": "", "tool_calls": calls})
    reload(page)
    page.run(SPY)
    choose(page, "Called")
    checks.add(page.run("return document.querySelectorAll('.tool-result').length") == 2, "each call has a field for its result")
    for n in (1, 2):
        page.run("document.querySelector('.tool-result input').focus()")
        page.keys(f"result {n}" + ENTER)
    page.until("return window.bodies.length > 0")
    page.until(IDLE)
    sent = [(m["role"], m.get("tool_call_id"), m["content"]) for m in page.run("return window.bodies[0].messages")]
    wanted = [("user", None, "a question"), ("assistant", None, ""), ("tool", "c1", "result 1"), ("tool", "c2", "result 2")]
    checks.add(sent == wanted and page.run("return window.bodies.length") == 1, f"the results are sent together: {sent}")
    checks.add(not page.run("return document.querySelectorAll('.tool-result').length"), "a result that is known is not asked for")


def narrow(page: Browser, checks: Checks) -> None:
    """On a telephone."""
    page.size(360, 640)
    page.click("#open-list")
    checks.add(page.run("return document.getElementById('list').checkVisibility()"), "the list opens")
    page.tap(350, 400)
    page.until("return !document.getElementById('list').checkVisibility()")
    checks.add(page.run("return document.getElementById('open-list').getAttribute('aria-expanded')") == "false", "a tap next to the list closes it")
    page.size(1280, 800)


def queue(page: Browser, checks: Checks) -> None:
    """A server with one place."""
    setting(page, set_max_tokens="4000", set_temperature="0")
    ask(page, STORY)
    until_written(page)
    ask(page, "The second question.")
    page.until("return document.getElementById('status').textContent === 'Waiting: yours is next'")
    ask(page, "The third question.")
    page.until("return document.getElementById('status').textContent === 'Waiting: 1 request comes before yours'")
    checks.add(True, "who waits sees how many come first")
    choose(page, "The second question.")
    page.click("#stop")
    page.until(IDLE)
    choose(page, "The third question.")
    page.until("return document.getElementById('status').textContent === 'Waiting: yours is next'")
    choose(page, STORY)
    page.click("#stop")
    choose(page, "The third question.")
    until_written(page, 0)
    checks.add(True, "and moves up, until it is answered")
    page.click("#stop")
    page.until(IDLE)


def run(page: Browser, checks: Checks, folder: Path) -> None:
    """All of it except the queue, with a page that was just opened."""
    at_once(page, checks)
    kept_through_a_reload(page, checks)
    two_tabs(page, checks)
    merged(page, checks)
    failed(page, checks)
    branches(page, checks)
    listed(page, checks, folder)
    own_system_prompt(page, checks)
    migrated(page, checks)
    full_storage(page, checks)
    of_a_page_that_is_gone(page, checks)
    given_results(page, checks)
    narrow(page, checks)
