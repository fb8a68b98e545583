// Conversations as the browser keeps them: one key for each, so that what one tab writes never takes another's away. Each change of another
// tab is merged into the same conversation here.

const { conversation: tree, tabs } = Alight;
const PREFIX = "alight.chat.";
// Where an older page kept all of them: a list of {id, title, messages}.
const OLDER = "alight.conversations";

const all = new Map();
// What the storage has of each, as this page last read or wrote it.
const known = new Map();
let changed = () => {};

// An answer that this page is reading is newer here than in any copy.
const isOurs = (node) => node.shown?.running === tabs.me;
const merge = (own, other) => tree.merge(own, other, isOurs);

const parse = (text) => {
  try { return tree.checked(JSON.parse(text)); } catch { return null; }
};

const load = (key, text) => {
  const read = parse(text);
  if (!read || PREFIX + read.id !== key) return null;
  const own = all.get(read.id);
  if (own) merge(own, read); else all.set(read.id, read);
  known.set(read.id, text);
  return own ?? read;
};

// Keeps a conversation. Reports false if the browser does not: its storage is full, or switched off.
const save = (conversation) => {
  const key = PREFIX + conversation.id;
  // A conversation without messages is not worth keeping, and one that another tab has deleted stays deleted.
  if (!conversation.nodes.length || all.get(conversation.id) !== conversation) return true;
  try {
    const stored = localStorage.getItem(key);
    if (stored !== null && stored !== known.get(conversation.id)) {
      const other = parse(stored);
      if (other) merge(conversation, other);
    }
    const text = JSON.stringify(conversation);
    localStorage.setItem(key, text);
    known.set(conversation.id, text);
    return true;
  } catch { return false; }
};

// The latest first.
const list = () => [...all.values()].sort((a, b) => b.at - a.at);

// A conversation without messages: there is one at most.
const begin = (system) => {
  const empty = list().find((one) => !one.nodes.length) ?? tree.create(system);
  empty.at = Date.now();
  all.set(empty.id, empty);
  return empty;
};

const remove = (ids) => {
  const removed = ids.map((id) => all.get(id)).filter(Boolean);
  for (const { id } of removed) {
    all.delete(id);
    known.delete(id);
    try { localStorage.removeItem(PREFIX + id); } catch { /* Nothing was kept then. */ }
  }
  return removed.filter((one) => one.nodes.length);
};

// Takes conversations, those that were deleted or come from a file. Reports whether the browser keeps all of them.
const take = (conversations) => {
  for (const one of conversations) {
    const own = all.get(one.id);
    if (own) merge(own, one); else all.set(one.id, one);
  }
  return conversations.every((one) => save(all.get(one.id)));
};

// What an older page has kept becomes conversations of their own. Its list goes when all of them are written. A storage that cannot hold both
// at once gives the list up first, and gets it back if the conversations do not fit then.
const migrate = (system) => {
  const text = localStorage.getItem(OLDER);
  if (text === null) return true;
  let older = [];
  try { older = JSON.parse(text); } catch { /* What cannot be read is as if there were nothing. */ }
  if (!Array.isArray(older)) older = [];
  const valid = older.filter((one) => one && typeof one.id === "string" && Array.isArray(one.messages) && one.messages.length);
  const taken = valid.map((one) => tree.ofMessages(one.id, String(one.title ?? "New chat"), one.messages, system));
  if (take(taken)) { localStorage.removeItem(OLDER); return true; }
  localStorage.removeItem(OLDER);
  if (take(taken)) return true;
  taken.forEach(({ id }) => { localStorage.removeItem(PREFIX + id); known.delete(id); });
  localStorage.setItem(OLDER, text);
  return false;
};

// Reads all of them. Reports whether the browser can keep what there is.
const open = (system) => {
  try {
    for (let i = 0; i < localStorage.length; i++) {
      const key = localStorage.key(i);
      if (key.startsWith(PREFIX)) load(key, localStorage.getItem(key));
    }
    return migrate(system);
  } catch { return false; }
};

// `change(conversation)` is called after another tab has changed a conversation, and `change(null)` after it has deleted some.
const watch = (change) => { changed = change; };

addEventListener("storage", ({ key, newValue }) => {
  if (key === null) {
    for (const [id, one] of all) if (one.nodes.length) all.delete(id);
    changed(null);
  } else if (key.startsWith(PREFIX)) {
    if (newValue === null) { all.delete(key.slice(PREFIX.length)); changed(null); return; }
    const read = load(key, newValue);
    if (read) changed(read);
  }
});

const settings = {
  read: (name) => { try { return localStorage.getItem(`alight.${name}`) ?? ""; } catch { return ""; } },
  write: (name, value) => { try { localStorage.setItem(`alight.${name}`, value); } catch { /* It holds until the page is closed. */ } },
};

Object.assign(Alight, { conversations: { open, list, begin, save, remove, take, watch, get: (id) => all.get(id) }, settings });
