// The messages of the conversation that is looked at.

const { element, button, copied, keys, show, conversation: tree, answers } = Alight;

// Arguments of a call, which may still come.
const pretty = (given) => {
  try { return JSON.stringify(JSON.parse(given), null, 2); } catch { return given; }
};

// The name of who has written a message: for an answer that of the model.
const author = (node) => ({ user: "You", tool: "Result of a tool", assistant: node.model || "Assistant" })[node.role] ?? node.role;

// Whether the result of a call is still to be given: nothing but results of other calls follows.
const isOpen = (conversation, node, id) => {
  const branch = tree.path(conversation);
  const rest = branch.slice(branch.indexOf(node) + 1);
  return rest.every((other) => other.role === "tool" && other.tool_call_id !== id);
};

// A call of a tool, with a field for its result if that is not known yet.
const call = (conversation, node, which, acts) => {
  const { id, function: { name } } = node.tool_calls[which];
  const made = element("details", { open: true }, element("summary", { text: `Calls ${name}` }), element("pre", {}, element("code")));
  if (isOpen(conversation, node, id)) {
    const field = element("input", { type: "text", "aria-label": `Result of ${name}` });
    const give = () => acts.give(node, id, field.value);
    keys(field, { send: give });
    made.append(element("div", { className: "tool-result" }, field, button("Give the result", `Give the result of ${name}`, give)));
  }
  return made;
};

// A field in place of a message's text.
const edit = (text, node, acts) => {
  const field = element("textarea", { value: node.content, rows: 4, "aria-label": "The message" });
  const cancel = () => { text.textContent = node.content; };
  const send = () => { if (field.value.trim()) acts.edit(node, field.value); };
  keys(field, { send, cancel });
  text.replaceChildren(field, element("div", { className: "buttons" },
    button("Send again", "Send the message again, as another version", send), button("Cancel", "Leave the message as it was", cancel)));
  field.focus();
};

// Arrows to the other versions of a message.
const arrows = (conversation, node, acts) => {
  const all = tree.versions(conversation, node);
  if (all.length < 2) return [];
  const at = all.indexOf(node);
  const arrow = (sign, label, to) => {
    const made = button(sign, label, () => acts.choose(all[to]));
    made.disabled = all[to] === undefined;
    return made;
  };
  const place = element("span", { className: "version", text: `${at + 1}/${all.length}` });
  return [arrow("‹", "Earlier version", at - 1), place, arrow("›", "Later version", at + 1)];
};

// Buttons and numbers below a message.
const below = (conversation, node, text, acts) => {
  const busy = answers.inProgress(conversation);
  const made = [];
  if (node.role === "user") {
    const change = button("Edit", "Edit this message and send it again", () => edit(text, node, acts));
    change.disabled = Boolean(busy);
    made.push(button("Copy", "Copy this message", (pressed) => copied(pressed, node.content)), change);
  }
  if (node.role === "assistant" && busy !== node) {
    if (node.content) made.push(button("Copy", "Copy this answer", (pressed) => copied(pressed, node.content)));
    if (!busy) {
      const failed = node.shown?.failed && tree.isEmpty(node);
      const [word, label] = failed ? ["Try again", "Ask again"] : ["Regenerate", "Answer again, as another version"];
      made.push(button(word, label, () => acts.again(node)));
    }
    const last = conversation.leaf === node.id && node.content && !node.tool_calls?.length;
    if (!busy && last && node.shown?.cut) made.push(button("Continue", "Continue this answer", () => acts.resume(node)));
  }
  made.push(...arrows(conversation, node, acts));
  if (node.shown?.failed) made.push(element("span", { className: "failed", text: `Failed: ${node.shown.failed}` }));
  if (node.shown?.warned) made.push(element("span", { className: "warned", text: `Note: ${node.shown.warned}` }));
  if (node.shown?.numbers) made.push(element("span", { className: "numbers", text: node.shown.numbers }));
  return made;
};

// A message as an article, and what brings it up to date: `text` as it grows, `all` when anything else has changed.
const draw = (conversation, node, acts) => {
  const article = element("article", { className: `message ${node.role}` });
  const who = element("p", { className: "who" });
  const text = element("div", { className: "text" });
  const thoughts = element("div", { className: "text" });
  const thinking = element("details", { className: "thinking", hidden: true }, element("summary", { text: "Thinking" }), thoughts);
  const calls = element("div");
  const actions = element("div", { className: "actions" });
  article.append(who, thinking, text, calls, actions);
  const grow = () => {
    who.textContent = author(node);
    article.setAttribute("aria-label", author(node));
    if (node.role === "assistant") show(text, node.content ?? ""); else if (!text.querySelector("textarea")) text.textContent = node.content;
    thinking.hidden = !node.reasoning_content;
    if (node.reasoning_content) show(thoughts, node.reasoning_content);
    (node.tool_calls ?? []).forEach((one, which) => {
      if (which === calls.childNodes.length) calls.append(call(conversation, node, which, acts));
      calls.childNodes[which].querySelector("code").textContent = pretty(one.function.arguments);
    });
  };
  const all = () => {
    grow();
    (node.tool_calls ?? []).forEach(({ id }, which) => {
      if (!isOpen(conversation, node, id)) calls.childNodes[which].querySelector(".tool-result")?.remove();
    });
    actions.replaceChildren(...below(conversation, node, text, acts));
  };
  all();
  return { article, grow, all };
};

const HINT = "Ask something: the answer is computed on the machine that serves this page.";

// The log of messages in `into`. It shows one conversation; `acts` are what a person can do with a message.
const log = (into, acts) => {
  let views = new Map();
  // The end stays in sight, unless the person has scrolled away from it.
  const follow = (always) => {
    if (always || into.scrollHeight - into.scrollTop - into.clientHeight < 120) into.scrollTop = into.scrollHeight;
  };
  // Shows a conversation from the first message to the last. Messages that are there already stay, and with them a field that is open.
  const open = (conversation) => {
    const branch = tree.path(conversation);
    const before = views;
    views = new Map();
    const articles = branch.map((node) => {
      const known = before.get(node.id);
      const view = known?.node === node ? known : { node, ...draw(conversation, node, acts) };
      if (view === known) view.all();
      views.set(node.id, view);
      return view.article;
    });
    for (const child of [...into.childNodes]) if (!articles.includes(child)) child.remove();
    articles.forEach((article, at) => { if (into.childNodes[at] !== article) into.insertBefore(article, into.childNodes[at] ?? null); });
    if (!articles.length) into.append(element("p", { className: "hint", text: HINT }));
  };
  let drawing = false;
  const grown = new Set();
  const grow = (node) => {
    grown.add(node.id);
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      const near = into.scrollHeight - into.scrollTop - into.clientHeight < 120;
      grown.forEach((id) => views.get(id)?.grow());
      grown.clear();
      if (near) follow(true);
    });
  };
  return { open, grow, follow };
};

Alight.log = log;
