// Conversations, kept in the browser: [{id, title, messages}], the latest first. A message is as OpenAI has it, with what is only shown
// in `shown`: numbers, an error.

const KEY = "alight.conversations";
const MAX_CONVERSATIONS = 200;

let all = [];
try {
  const kept = JSON.parse(localStorage.getItem(KEY) ?? "[]");
  if (Array.isArray(kept)) all = kept.filter((one) => one && typeof one.id === "string" && Array.isArray(one.messages));
} catch { /* What cannot be read is as if there were nothing. */ }

// Whether they could be kept: a browser may have no room, or be told to keep nothing.
const keep = () => {
  for (;;) {
    try { localStorage.setItem(KEY, JSON.stringify(all)); return true; }
    catch { if (all.length < 2) return false; all.pop(); }
  }
};

const begin = () => {
  const empty = all.find((one) => !one.messages.length);
  if (empty) return empty;
  const made = { id: `${Date.now()}-${Math.random()}`, title: "New chat", messages: [] };
  all.unshift(made);
  all.length = Math.min(all.length, MAX_CONVERSATIONS);
  return made;
};

const remove = (id) => { all = all.filter((one) => one.id !== id); keep(); };
const removeAll = () => { all = []; keep(); };

const settings = {
  read: (name) => { try { return localStorage.getItem(`alight.${name}`) ?? ""; } catch { return ""; } },
  write: (name, value) => { try { localStorage.setItem(`alight.${name}`, value); } catch { /* It holds until the page is closed. */ } },
};

Object.assign(Alight, { conversations: { all: () => all, begin, keep, remove, removeAll }, settings });
