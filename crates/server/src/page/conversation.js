// A conversation is a tree of messages: {id, title, titled, system, prompted, at, leaf, nodes}.
//
// A node is a message as OpenAI has it, with `id`, `parent` (the id of the message before, or null), `at` (when it last changed) and, for what
// is only shown, `model` and `shown`. To edit a message and to answer again add a node next to the earlier one, and no node is ever taken away.
// So two copies of a conversation, such as those of two tabs, are merged node by node, and nothing of either is lost. `leaf` is the end of the
// branch that is shown. `titled` and `prompted` are the times at which a person set the title and the system prompt: the later one holds.

const LONGEST_TITLE = 80;
const ROLES = ["user", "assistant", "tool", "system"];
// Of a node: what the server gets.
const SENT = ["role", "content", "reasoning_content", "tool_calls", "tool_call_id"];

const timeOf = (id) => parseInt(id, 10) || 0;
const newId = () => `${Date.now()}-${Math.random().toString(36).slice(2)}`;

const create = (system) => ({ id: newId(), title: "New chat", titled: 0, system, prompted: 0, at: Date.now(), leaf: null, nodes: [] });

const find = (conversation, id) => conversation.nodes.find((node) => node.id === id);

// The messages from the first to `leaf`.
const path = (conversation, leaf = conversation.leaf) => {
  const byId = new Map(conversation.nodes.map((node) => [node.id, node]));
  const found = [];
  for (let node = byId.get(leaf); node; node = byId.get(node.parent)) {
    // A file that was made by hand may lead in a circle.
    byId.delete(node.id);
    found.push(node);
  }
  return found.reverse();
};

// The versions of a message: what else was asked, or answered, at its place.
const versions = (conversation, node) => conversation.nodes.filter((other) => other.parent === node.parent && other.role === node.role);

// The end of the branch that was last continued from a node.
const end = (conversation, id) => {
  const last = new Map(conversation.nodes.map((node) => [node.parent, node.id]));
  const seen = new Set();
  for (let next = last.get(id); next !== undefined && !seen.has(next); next = last.get(id)) { seen.add(next); id = next; }
  return id;
};

const add = (conversation, message, parent = conversation.leaf) => {
  const node = { id: newId(), parent, at: Date.now(), ...message };
  conversation.nodes.push(node);
  conversation.leaf = node.id;
  conversation.at = node.at;
  return node;
};

// A line that names a conversation by its first question: without marks of Markdown, and cut between two words.
const titleOf = (text) => {
  const line = text.split("\n").map((one) => one.replace(/[`*_#>]+/g, " ").replace(/\s+/g, " ").trim()).find(Boolean) ?? "New chat";
  if (line.length <= LONGEST_TITLE) return line;
  const cut = line.slice(0, LONGEST_TITLE);
  const space = cut.lastIndexOf(" ");
  return `${space > LONGEST_TITLE / 2 ? cut.slice(0, space) : cut}…`;
};

const isEmpty = (node) => node.role === "assistant" && !node.content && !node.tool_calls?.length;

// What the server gets of the messages up to `leaf`. An answer that has failed before its first word is no message.
const forServer = (conversation, leaf) => {
  const messages = path(conversation, leaf).filter((node) => !isEmpty(node));
  const sent = messages.map((node) => Object.fromEntries(SENT.filter((key) => node[key] !== undefined).map((key) => [key, node[key]])));
  const system = conversation.system.trim();
  return system ? [{ role: "system", content: system }, ...sent] : sent;
};

// Takes from `other`, a copy of the same conversation, what is newer there, except for nodes that this page `owns`. Nodes stay the same objects.
const merge = (into, other, owns = () => false) => {
  const mine = new Map(into.nodes.map((node) => [node.id, node]));
  for (const node of other.nodes) {
    const own = mine.get(node.id);
    if (!own) into.nodes.push(node);
    else if (node.at > own.at && !owns(own)) {
      for (const key of Object.keys(own)) delete own[key];
      Object.assign(own, node);
    }
  }
  // Ids begin with the time at which they were made.
  into.nodes.sort((a, b) => timeOf(a.id) - timeOf(b.id));
  if (other.titled > into.titled || (into.title === "New chat" && !into.titled)) [into.title, into.titled] = [other.title, other.titled];
  if (other.prompted > into.prompted) [into.system, into.prompted] = [other.system, other.prompted];
  into.at = Math.max(into.at, other.at);
  // The branch that is shown stays, unless it was continued there.
  if (into.leaf === null || path(into, other.leaf).some((node) => node.id === into.leaf)) into.leaf = other.leaf;
  if (!find(into, into.leaf)) into.leaf = end(into, null);
};

// ---- what comes from outside: the storage, an older page, a file

const isText = (value) => typeof value === "string";
const isContent = (value) => isText(value) || value === null || value === undefined || Array.isArray(value);
const isMessage = (one) => one && typeof one === "object" && ROLES.includes(one.role) && isContent(one.content);

// The content as one text: OpenAI's messages may have it in parts.
const textOf = (content) => (Array.isArray(content) ? content.map((part) => (isText(part?.text) ? part.text : "")).join("\n") : content ?? "");

const callsOf = (calls) => {
  if (!Array.isArray(calls)) return undefined;
  const kept = calls.filter((call) => call && isText(call.id) && isText(call.function?.name) && isText(call.function?.arguments));
  if (!kept.length) return undefined;
  return kept.map(({ id, function: { name, arguments: given } }) => ({ id, type: "function", function: { name, arguments: given } }));
};

const messageOf = (one) => {
  const message = { role: one.role, content: textOf(one.content) };
  if (isText(one.reasoning_content)) message.reasoning_content = one.reasoning_content;
  if (isText(one.tool_call_id)) message.tool_call_id = one.tool_call_id;
  if (isText(one.model)) message.model = one.model;
  const calls = callsOf(one.tool_calls);
  if (calls) message.tool_calls = calls;
  if (one.shown && typeof one.shown === "object") {
    message.shown = {};
    for (const key of ["numbers", "warned", "failed", "cut", "running"]) if (isText(one.shown[key])) message.shown[key] = one.shown[key];
  }
  return message;
};

// A list of messages, as an older page kept it and as files of other programs have it. The ids of its nodes follow from its own, so that
// taking it twice adds nothing.
const ofMessages = (id, title, messages, system = "") => {
  const at = timeOf(id) || Date.now();
  const conversation = { id, title, titled: at, system, prompted: at, at, leaf: null, nodes: [] };
  const kept = messages.filter(isMessage);
  const first = kept.filter((one) => one.role === "system").map((one) => textOf(one.content)).join("\n\n");
  if (first) conversation.system = first;
  kept.filter((one) => one.role !== "system").forEach((one, index) => {
    const node = { id: `${id}.${index}`, parent: conversation.leaf, at, ...messageOf(one) };
    conversation.nodes.push(node);
    conversation.leaf = node.id;
  });
  return conversation;
};

// A conversation as this page keeps it, or null.
const checked = (value) => {
  if (!value || !isText(value.id) || !Array.isArray(value.nodes)) return null;
  const number = (one) => (Number.isFinite(one) ? one : 0);
  const nodes = value.nodes.filter((node) => isMessage(node) && isText(node.id) && (node.parent === null || isText(node.parent)));
  const conversation = {
    id: value.id, title: isText(value.title) ? value.title : "New chat", titled: number(value.titled),
    system: isText(value.system) ? value.system : "", prompted: number(value.prompted), at: number(value.at),
    leaf: value.leaf, nodes: nodes.map((node) => ({ id: node.id, parent: node.parent, at: number(node.at), ...messageOf(node) })),
  };
  if (!find(conversation, conversation.leaf)) conversation.leaf = end(conversation, null);
  return conversation;
};

// The conversations of a file: one that this page has written, or a list of OpenAI's messages.
const ofFile = (text, name) => {
  let value;
  try { value = JSON.parse(text); }
  catch (error) { throw new Error(`'${name}' is not JSON: ${error.message}`); }
  const title = name.replace(/\.json$/i, "");
  const messages = Array.isArray(value) ? value : value?.messages;
  const found = Array.isArray(value?.conversations) ? value.conversations.map(checked).filter(Boolean)
    : Array.isArray(messages) ? [ofMessages(newId(), title, messages)] : [];
  const kept = found.filter((one) => one.nodes.length);
  if (!kept.length) {
    throw new Error(`'${name}' has no conversation: expected a file that this page has written, or a list of messages with "role" and "content"`);
  }
  return kept;
};

const file = (conversations) => JSON.stringify({ alight: 1, conversations }, null, 1);

const has = (conversation, words) => {
  const texts = [conversation.title, ...conversation.nodes.map((node) => node.content ?? "")].map((text) => text.toLowerCase());
  return words.toLowerCase().split(/\s+/).every((word) => texts.some((text) => text.includes(word)));
};

Alight.conversation = { create, find, path, versions, end, add, titleOf, isEmpty, forServer, merge, ofMessages, checked, ofFile, file, has };
Alight.newId = newId;
