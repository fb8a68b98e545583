// The list of conversations: choose, rename, delete, find.

const { element, button, keys, conversation: tree, conversations, answers } = Alight;

// `acts`: choose(conversation), removed(conversations), renamed(conversation).
const list = (into, search, acts) => {
  let renaming = null;

  const rename = (one) => { renaming = one.id; refresh(); };

  const field = (one) => {
    const input = element("input", { type: "text", value: one.title, "aria-label": "Title of the conversation" });
    const done = (keeps) => {
      if (renaming !== one.id) return;
      renaming = null;
      const title = input.value.replace(/\s+/g, " ").trim();
      if (keeps && title && title !== one.title) {
        [one.title, one.titled] = [title, Date.now()];
        acts.renamed(one);
      }
      refresh();
    };
    keys(input, { send: () => done(true), cancel: () => done(false) });
    input.addEventListener("blur", () => done(true));
    return input;
  };

  const row = (one) => {
    if (renaming === one.id) return element("li", {}, field(one));
    const text = element("span", { className: "title-text", text: one.title });
    const name = element("button", { type: "button", className: "name", title: one.title }, text);
    if (one === shown) name.setAttribute("aria-current", "true");
    if (answers.inProgress(one)) name.append(element("span", { className: "busy", text: "answering" }));
    name.addEventListener("click", () => acts.choose(one));
    const made = element("li", { className: one === shown ? "current" : "" }, name);
    if (one.nodes.length) {
      made.append(element("span", { className: "row-actions" },
        button("✎", `Rename the conversation ${one.title}`, () => rename(one)),
        button("×", `Delete the conversation ${one.title}`, () => acts.remove([one]))));
    }
    return made;
  };

  let shown = null;
  const refresh = (current = shown) => {
    shown = current;
    // A title that is being written stays as it is.
    if (renaming && into.querySelector("input") && conversations.get(renaming)) return;
    const words = search.value.trim();
    const found = conversations.list().filter((one) => !words || tree.has(one, words));
    into.replaceChildren(...found.map(row));
    if (words && !found.length) into.append(element("li", { className: "hint", text: "No conversation has these words." }));
    const input = into.querySelector("input");
    if (input) { input.focus(); input.select(); }
  };
  search.addEventListener("input", () => refresh());
  const showEverything = () => {
    if (!search.value) return false;
    search.value = "";
    refresh();
    return true;
  };
  keys(search, { send: () => into.querySelector(".name")?.click(), cancel: showEverything });
  return { refresh };
};

Alight.list = list;
