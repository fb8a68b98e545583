// The page: its panels and fields, and what a person does with a conversation.

const { element, get, setKey, conversation: tree, conversations, settings, answers, tabs, keys, download, watchMemory } = Alight;
const at = (id) => document.getElementById(id);
const NUMBERS = [
  ["temperature", "Temperature"], ["top_p", "Top p"], ["top_k", "Top k"], ["min_p", "Min p"],
  ["repeat_penalty", "Repeat penalty"], ["max_tokens", "Most tokens"], ["seed", "Seed"],
];
const WHOLE = ["top_k", "max_tokens", "seed"];
const MAX_FILE = 64 << 20;
const FULL = "This browser keeps no more: what is new is gone when the page is closed. Save conversations to a file (Settings), and delete some.";

let current = null;
// What is written in the field of each conversation, and not sent.
const drafts = new Map();

const notice = (text) => { at("notice").textContent = text; at("notice").hidden = !text; };
const isKept = (kept) => { if (!kept) notice(FULL); };

// ---- what a person does with a conversation

// The fields of a request besides its messages.
const options = () => {
  const body = { model: at("model").value || "any" };
  for (const [name] of NUMBERS) {
    const text = settings.read(name);
    const number = Number(text);
    if (text.trim() && Number.isFinite(number)) body[name] = WHOLE.includes(name) ? Math.trunc(number) : number;
  }
  const thinking = settings.read("thinking");
  if (thinking) body.chat_template_kwargs = { enable_thinking: thinking === "on" };
  const tools = settings.read("tools").trim();
  if (tools) {
    try { body.tools = JSON.parse(tools); }
    catch (error) { throw new Error(`the tools in Settings are not JSON: ${error.message}`); }
  }
  return body;
};

// Whether something can be asked in a conversation now.
const isFree = (conversation) => {
  if (answers.inProgress(conversation)) return false;
  if (!answers.isFull()) return true;
  notice(`${answers.MAX_RUNNING} answers are being written, the most at a time: stop one of them, or wait.`);
  return false;
};

// Has the branch that ends with `parent` answered: in a new message, or in `node`.
const respond = (conversation, parent, node) => {
  const model = at("model").value;
  node ??= tree.add(conversation, { role: "assistant", content: "", ...(model ? { model } : {}) }, parent);
  conversation.leaf = node.id;
  answers.start(conversation, node, options);
  messages.follow(true);
};

const ask = (conversation, text, parent = conversation.leaf) => {
  if (!text.trim() || !isFree(conversation)) return false;
  notice("");
  if (parent === null && !conversation.titled) conversation.title = tree.titleOf(text);
  const { id } = tree.add(conversation, { role: "user", content: text }, parent);
  respond(conversation, id);
  return true;
};

const acts = {
  edit: (node, text) => ask(current, text, node.parent),
  again: (node) => {
    if (!isFree(current)) return;
    // What has failed before its first word, and was not followed by anything, is no version of its own.
    const isLast = !current.nodes.some((other) => other.parent === node.id);
    respond(current, node.parent, isLast && tree.isEmpty(node) && node.shown?.failed ? node : null);
  },
  resume: (node) => { if (isFree(current)) respond(current, node.parent, node); },
  choose: (node) => { current.leaf = tree.end(current, node.id); isKept(conversations.save(current)); showAll(); },
  give: (node, call, text) => {
    if (!isFree(current)) return;
    tree.add(current, { role: "tool", tool_call_id: call, content: text });
    const known = new Set(tree.path(current).map((one) => one.tool_call_id));
    if (node.tool_calls.every(({ id }) => known.has(id))) respond(current, current.leaf);
    else { isKept(conversations.save(current)); showAll(); }
  },
};

const stop = () => {
  const node = answers.inProgress(current);
  if (answers.of(current)) answers.stop(current);
  else if (node) { tabs.stopElsewhere(node.id); checkCutOff(current); }
};

// ---- what is shown

const messages = Alight.log(at("log"), acts);

const status = () => {
  const node = answers.inProgress(current);
  const own = answers.of(current);
  const text = own ? own.status : node ? "Answered in another tab" : "";
  // A reader of the screen reads it again whenever it is set.
  if (at("status").textContent !== text) at("status").textContent = text;
  at("send").disabled = Boolean(node);
  at("stop").hidden = !node;
};

const refresh = () => { names.refresh(current); status(); };

const showAll = () => {
  messages.open(current);
  document.title = current.nodes.length ? `${current.title} – Alight` : "Alight";
  refresh();
};

// An answer may be that of a page that is gone.
const checkCutOff = async (conversation) => {
  if (!await answers.endCutOff(conversation)) return;
  if (conversation === current) showAll(); else refresh();
};

const choose = (conversation) => {
  if (current) drafts.set(current.id, at("ask").value);
  // A chat in which nothing was written is not listed after it was left.
  const isUnused = current && !current.nodes.length && !current.prompted && !at("ask").value.trim();
  if (isUnused && current !== conversation) conversations.remove([current.id]);
  current = conversation;
  at("ask").value = drafts.get(current.id) ?? "";
  at("chat-system").value = current.system;
  showAll();
  messages.follow(true);
  checkCutOff(current);
};

answers.watch((conversation, node, event, answer) => {
  const looked = conversation === current;
  if (event === "grew") {
    if (looked) { messages.grow(node); status(); }
    return;
  }
  if (looked) showAll(); else refresh();
  if (event === "began") return;
  isKept(answer.kept);
  // Those who listen hear the answer once, whole.
  if (looked) at("spoken").textContent = node.shown.failed ? `The answer has failed: ${node.shown.failed}` : `Answer: ${node.content}`;
});

conversations.watch((conversation) => {
  answers.all().filter((answer) => !conversations.get(answer.conversation.id)).forEach(({ abort }) => abort.abort());
  if (!conversations.get(current.id)) { choose(conversations.list()[0] ?? conversations.begin(settings.read("system"))); return; }
  if (conversation === current) {
    showAll();
    at("chat-system").value = current.system;
  } else refresh();
  if (conversation) checkCutOff(conversation);
});

// Reports what was done; `undo` takes it back.
let takeBack = null;
const toast = (text, undo) => {
  at("toast-text").textContent = text;
  at("undo").hidden = !undo;
  at("toast").hidden = !text;
  takeBack = undo;
};

const remove = (some) => {
  some.forEach(answers.stop);
  const removed = conversations.remove(some.map(({ id }) => id));
  const before = current;
  if (some.includes(current)) choose(conversations.list()[0] ?? conversations.begin(settings.read("system"))); else refresh();
  if (!removed.length) return;
  toast(removed.length === 1 ? `Deleted: ${removed[0].title}` : `Deleted: ${removed.length} conversations`, () => {
    isKept(conversations.take(removed));
    choose(removed.includes(before) ? before : current);
  });
};

const names = Alight.list(at("conversations"), at("search"), {
  choose: (one) => { toggleList(false); choose(one); },
  remove,
  renamed: (one) => { isKept(conversations.save(one)); if (one === current) showAll(); },
});

// ---- panels

const toggleList = (open) => {
  at("list").classList.toggle("open", open);
  at("scrim").hidden = !open;
  at("open-list").setAttribute("aria-expanded", String(open));
};

const PANELS = ["memory", "settings"];
const toggle = (which, open) => {
  for (const panel of PANELS) {
    const shown = panel === which && open;
    at(panel).hidden = !shown;
    at(`open-${panel}`).setAttribute("aria-expanded", String(shown));
  }
  watchMemory(which === "memory" && open);
};

// ---- files

const save = (name, some) => download(`${name}.json`, tree.file(some), "application/json");

const openFiles = async (files) => {
  const taken = [], failed = [];
  for (const file of files) {
    try {
      if (file.size > MAX_FILE) throw new Error(`'${file.name}' has ${file.size} bytes, and at most ${MAX_FILE} are read`);
      taken.push(...tree.ofFile(await file.text(), file.name));
    } catch (error) { failed.push(error.message); }
  }
  const kept = conversations.take(taken);
  if (taken.length) {
    choose(conversations.get(taken[0].id));
    taken.forEach(({ id }) => checkCutOff(conversations.get(id)));
    toast(`Opened: ${taken.length === 1 ? taken[0].title : `${taken.length} conversations`}`);
  }
  notice(failed.join("; "));
  isKept(kept);
};

// ---- the beginning

const models = async () => {
  try {
    const { data } = await get("/v1/models");
    at("model").replaceChildren(...data.map(({ id }) => element("option", { value: id, text: id })));
    const before = settings.read("model");
    if (data.some(({ id }) => id === before)) at("model").value = before;
    notice("");
  } catch (error) {
    notice(`The server does not answer: ${error.message}`);
  }
};

const bind = (id, name) => {
  at(id).value = settings.read(name);
  at(id).addEventListener("change", () => settings.write(name, at(id).value));
};

at("numbers").append(...NUMBERS.map(([name, label]) =>
  element("label", {}, label, element("input", { id: `set-${name}`, type: "number", step: WHOLE.includes(name) ? "1" : "any" }))));
NUMBERS.forEach(([name]) => bind(`set-${name}`, name));
["system", "thinking", "tools"].forEach((name) => bind(name, name));
at("system").addEventListener("change", () => {
  // A chat that has not begun is a new one.
  if (!current.nodes.length) at("chat-system").value = current.system = at("system").value;
});
at("chat-system").addEventListener("change", () => {
  [current.system, current.prompted] = [at("chat-system").value, Date.now()];
  isKept(conversations.save(current));
});
at("model").addEventListener("change", () => settings.write("model", at("model").value));
at("key").value = Alight.key();
at("key").addEventListener("change", () => { setKey(at("key").value); models(); });

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = at("ask");
  if (ask(current, field.value)) { field.value = ""; drafts.delete(current.id); }
});
keys(at("ask"), { send: () => at("composer").requestSubmit() });
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing) return;
  const open = PANELS.find((panel) => !at(panel).hidden);
  if (at("list").classList.contains("open")) { toggleList(false); at("open-list").focus(); }
  else if (answers.inProgress(current)) stop();
  else if (open) { toggle(open, false); at(`open-${open}`).focus(); }
});
at("stop").addEventListener("click", stop);
at("new").addEventListener("click", () => { toggleList(false); choose(conversations.begin(settings.read("system"))); at("ask").focus(); });
at("open-list").addEventListener("click", () => toggleList(!at("list").classList.contains("open")));
at("scrim").addEventListener("click", () => toggleList(false));
at("undo").addEventListener("click", () => { const undo = takeBack; toast(""); undo(); at("ask").focus(); });
at("toast-close").addEventListener("click", () => toast(""));
PANELS.forEach((panel) => at(`open-${panel}`).addEventListener("click", () => toggle(panel, at(panel).hidden)));
document.querySelectorAll("[data-closes]").forEach((one) => one.addEventListener("click", () => {
  toggle(one.dataset.closes, false);
  at(`open-${one.dataset.closes}`).focus();
}));
at("export").addEventListener("click", () => save(current.title.replace(/[^\p{L}\p{N} _-]+/gu, "").slice(0, 60).trim() || "conversation", [current]));
at("export-all").addEventListener("click", () => save("conversations", conversations.list().filter((one) => one.nodes.length)));
at("import").addEventListener("click", () => at("files").click());
at("files").addEventListener("change", async () => { await openFiles([...at("files").files]); at("files").value = ""; });
at("forget").addEventListener("click", () => remove(conversations.list()));

const kept = conversations.open(settings.read("system"));
choose(conversations.list()[0] ?? conversations.begin(settings.read("system")));
conversations.list().forEach(checkCutOff);
models().then(() => isKept(kept));
at("ask").focus();
