// The chat: what a person does, and what is shown of it.

const { element, show, copied, get, stream, setKey, conversations, settings, watchMemory } = Alight;
const at = (id) => document.getElementById(id);
const NUMBERS = [
  ["temperature", "Temperature"], ["top_p", "Top p"], ["top_k", "Top k"], ["min_p", "Min p"],
  ["repeat_penalty", "Repeat penalty"], ["max_tokens", "Most tokens"], ["seed", "Seed"],
];
const WHOLE = ["top_k", "max_tokens", "seed"];

let current = null;
// What is being answered: {abort, conversation}.
let running = null;

const notice = (text) => { at("notice").textContent = text; at("notice").hidden = !text; };
const status = (text) => { at("status").textContent = text; };

// ---- requests

const wanted = () => {
  const body = {};
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

const seconds = (ms) => (ms >= 9950 ? `${Math.round(ms / 1000)} s` : `${(ms / 1000).toFixed(1)} s`);

const progress = (told, answer) => {
  const { total, cache, processed, time_ms } = told;
  const known = cache ? `, ${cache} known already` : "";
  const rate = time_ms > 0 ? (processed - cache) / time_ms : 0;
  const left = rate > 0 && total > processed ? `, ${seconds((total - processed) / rate)} left` : "";
  if (!answer.first) status(`Reading: ${processed} of ${total} tokens${known}${left}`);
};

const numbers = (answer) => {
  const { usage, began, first, last } = answer;
  const said = [];
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    said.push(`${usage.prompt_tokens} tokens read${cached ? ` (${cached} known already)` : ""}`);
    const rate = last > first && usage.completion_tokens > 1 ? `, ${((usage.completion_tokens - 1) / (last - first) * 1000).toFixed(1)} per second` : "";
    said.push(`${usage.completion_tokens} generated${rate}`);
  }
  if (first) said.push(`first after ${seconds(first - began)}`);
  if (answer.stopped) said.push("stopped");
  if (answer.reason === "length") said.push("ended by the most tokens or the context");
  return said.join(" · ");
};

// Has the conversation answered, and shows the answer as it comes.
const respond = async (conversation) => {
  const abort = new AbortController();
  running = { abort, conversation };
  const message = { role: "assistant", content: "" };
  const answer = { began: performance.now(), first: 0, last: 0 };
  const node = draw(message, conversation, conversation.messages.length);
  at("log").append(node.all);
  refresh();
  follow(true);
  status("Waiting for the server");
  let drawing = false;
  const later = () => {
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => { drawing = false; node.update(); follow(false); });
  };
  const each = (told) => {
    if (told.prompt_progress) progress(told.prompt_progress, answer);
    if (told.usage) answer.usage = told.usage;
    const choice = told.choices?.[0];
    if (!choice) return;
    const { content, reasoning_content, tool_calls } = choice.delta ?? {};
    if (content || reasoning_content || tool_calls) {
      answer.last = performance.now();
      if (!answer.first) { answer.first = answer.last; status("Answering"); }
    }
    if (content) message.content += content;
    if (reasoning_content) message.reasoning_content = (message.reasoning_content ?? "") + reasoning_content;
    for (const call of tool_calls ?? []) {
      const calls = (message.tool_calls ??= []);
      if (call.id) calls.push({ id: call.id, type: "function", function: { ...call.function } });
      // What follows the first piece of a call are more of its arguments.
      else if (calls[call.index]) calls[call.index].function.arguments += call.function.arguments;
    }
    if (choice.finish_reason) answer.reason = choice.finish_reason;
    later();
  };
  try {
    const system = settings.read("system").trim();
    const messages = conversation.messages.map(({ shown, ...rest }) => rest);
    if (system) messages.unshift({ role: "system", content: system });
    const body = { ...wanted(), model: at("model").value || "any", messages, stream: true, stream_options: { include_usage: true }, return_progress: true };
    await stream("/v1/chat/completions", body, abort.signal, each);
  } catch (error) {
    if (abort.signal.aborted) answer.stopped = true;
    else message.shown = { failed: error.message };
  }
  running = null;
  message.shown = { ...message.shown, numbers: numbers(answer) };
  conversation.messages.push(message);
  const kept = conversations.keep();
  if (current === conversation) showAll(); else refresh();
  status(answer.stopped ? "Stopped" : "");
  if (!kept) notice("This browser has no room to keep conversations: they are gone when the page is closed.");
  // Those who listen hear the answer once, whole.
  at("said").textContent = message.shown.failed ? `The answer has failed: ${message.shown.failed}` : `Answer: ${message.content}`;
};

const send = (text) => {
  if (running || !text.trim()) return;
  const conversation = current;
  if (!conversation.messages.length) conversation.title = text.trim().slice(0, 60);
  conversation.messages.push({ role: "user", content: text });
  conversations.keep();
  showAll();
  respond(conversation);
};

// What came from message `index` on is taken away, and the rest answered again.
const again = (conversation, index) => {
  if (running) return;
  conversation.messages.length = index;
  showAll();
  respond(conversation);
};

// ---- what is shown

const button = (text, label, act) => {
  const made = element("button", { type: "button", text, "aria-label": label });
  made.addEventListener("click", () => act(made));
  return made;
};

// The node of a message, and what brings it up to date.
const draw = (message, conversation, index) => {
  const who = { user: "You", assistant: "Model", tool: "Result of a tool" }[message.role] ?? message.role;
  const all = element("article", { className: `message ${message.role}`, "aria-label": who });
  const text = element("div", { className: "text" });
  const thinking = element("details", { className: "thinking", hidden: true }, element("summary", { text: "Thinking" }));
  const thoughts = element("div", { className: "text" });
  thinking.append(thoughts);
  const calls = element("div");
  const actions = element("div", { className: "actions" });
  all.append(element("p", { className: "who", text: who }), thinking, text, calls, actions);
  const update = () => {
    if (message.role === "assistant") show(text, message.content ?? ""); else text.textContent = message.content;
    thinking.hidden = !message.reasoning_content;
    if (message.reasoning_content) show(thoughts, message.reasoning_content);
    (message.tool_calls ?? []).forEach((one, which) => {
      if (which === calls.childNodes.length) calls.append(call(message, conversation, index, which));
      calls.childNodes[which].querySelector("code").textContent = pretty(one.function.arguments);
    });
  };
  update();
  const done = running?.conversation !== conversation || index < conversation.messages.length;
  if (message.role === "user") {
    actions.append(button("Edit", "Edit this message and send it again", () => edit(text, message, conversation, index)));
  }
  if (message.role === "assistant" && done) {
    actions.append(button("Copy", "Copy this answer", (made) => copied(made, message.content)));
    if (index === conversation.messages.length - 1) {
      actions.append(button("Regenerate", "Answer again", () => again(conversation, index)));
    }
  }
  if (message.shown?.failed) actions.append(element("span", { className: "failed", text: `Failed: ${message.shown.failed}` }));
  if (message.shown?.numbers) actions.append(element("span", { className: "numbers", text: message.shown.numbers }));
  return { all, update };
};

// Arguments of a call, which may still come.
const pretty = (given) => {
  try { return JSON.stringify(JSON.parse(given), null, 2); } catch { return given; }
};

// A call of a tool, with a field for what the tool has said, if it is not known yet.
const call = (message, conversation, index, which) => {
  const { id, function: { name } } = message.tool_calls[which];
  const made = element("details", { open: true }, element("summary", { text: `Calls ${name}` }), element("pre", {}, element("code")));
  const known = conversation.messages.some((other) => other.role === "tool" && other.tool_call_id === id);
  if (!known && index >= conversation.messages.length - 1) {
    const field = element("input", { type: "text", "aria-label": `What ${name} says` });
    const give = button("Give the result", `Give the result of ${name}`, () => {
      if (running) return;
      conversation.messages.push({ role: "tool", tool_call_id: id, content: field.value });
      showAll();
      const open = message.tool_calls.some((one) => !conversation.messages.some((other) => other.tool_call_id === one.id));
      if (!open) respond(conversation);
    });
    made.append(element("div", { className: "tool-result" }, field, give));
  }
  return made;
};

const edit = (text, message, conversation, index) => {
  if (running) return;
  const field = element("textarea", { value: message.content, rows: 4, "aria-label": "The message" });
  const save = button("Send again", "Send the message again", () => {
    if (running || !field.value.trim()) return;
    if (index === 0) conversation.title = field.value.trim().slice(0, 60);
    conversation.messages.length = index;
    send(field.value);
  });
  const cancel = button("Cancel", "Leave the message as it was", () => { text.textContent = message.content; });
  text.replaceChildren(field, element("div", { className: "buttons" }, save, cancel));
  field.focus();
};

// The end stays in sight, unless somebody has scrolled away from it.
const follow = (always) => {
  const log = at("log");
  if (always || log.scrollHeight - log.scrollTop - log.clientHeight < 120) log.scrollTop = log.scrollHeight;
};

const showAll = () => {
  const nodes = current.messages.map((message, index) => draw(message, current, index).all);
  at("log").replaceChildren(...nodes);
  if (!nodes.length) at("log").append(element("p", { className: "hint", text: "Ask something: the answer is computed on the machine that serves this page." }));
  follow(true);
  refresh();
};

const refresh = () => {
  const rows = conversations.all().map((one) => {
    const name = element("button", { type: "button", className: "name", text: one.title, title: one.title });
    if (one === current) name.setAttribute("aria-current", "true");
    name.addEventListener("click", () => { current = one; toggleList(false); showAll(); });
    const drop = button("×", `Delete the conversation ${one.title}`, () => {
      if (running?.conversation === one) running.abort.abort();
      conversations.remove(one.id);
      if (one === current) current = conversations.all()[0] ?? conversations.begin();
      showAll();
    });
    return element("li", {}, name, drop);
  });
  at("conversations").replaceChildren(...rows);
  at("send").disabled = running !== null;
  at("stop").hidden = running === null;
};

const toggleList = (open) => {
  at("list").classList.toggle("open", open);
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

const stop = () => { running?.abort.abort(); };

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
at("model").addEventListener("change", () => settings.write("model", at("model").value));
at("key").value = Alight.key();
at("key").addEventListener("change", () => { setKey(at("key").value); models(); });

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) return;
  const text = at("ask").value;
  at("ask").value = "";
  send(text);
});
at("ask").addEventListener("keydown", (event) => {
  // While a word is being composed, Enter is part of that.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!running) at("composer").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (running) stop();
  else { PANELS.forEach((panel) => { if (!at(panel).hidden) { toggle(panel, false); at(`open-${panel}`).focus(); } }); toggleList(false); }
});
at("stop").addEventListener("click", stop);
at("new").addEventListener("click", () => { current = conversations.begin(); toggleList(false); showAll(); at("ask").focus(); });
at("open-list").addEventListener("click", () => toggleList(!at("list").classList.contains("open")));
PANELS.forEach((panel) => at(`open-${panel}`).addEventListener("click", () => toggle(panel, at(panel).hidden)));
document.querySelectorAll("[data-closes]").forEach((one) => one.addEventListener("click", () => {
  toggle(one.dataset.closes, false);
  at(`open-${one.dataset.closes}`).focus();
}));
at("export").addEventListener("click", () => {
  const text = JSON.stringify(current.messages.map(({ shown, ...rest }) => rest), null, 2);
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  element("a", { href: address, download: "conversation.json" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
});
at("forget").addEventListener("click", () => {
  if (!confirm("Delete all conversations of this browser?")) return;
  stop();
  conversations.removeAll();
  current = conversations.begin();
  showAll();
});

current = conversations.all()[0] ?? conversations.begin();
showAll();
models();
at("ask").focus();
