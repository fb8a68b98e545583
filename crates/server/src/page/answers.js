// Answers in progress: at most one in each conversation, whichever conversation is looked at. The text is kept as it comes, so that it outlives
// the page.

const { stream, conversation: tree, conversations, tabs } = Alight;
// A browser has six connections to a server, and the page needs some for other requests.
const MAX_RUNNING = 4;
const SAVE_EVERY = 1000;

// By conversation: {conversation, node, abort, status, began, first, last, usage, warnings, reason, saved}.
const running = new Map();
// Called with (conversation, node, event): "began", "grew", "ended".
let watcher = () => {};

const seconds = (ms) => (ms >= 9950 ? `${Math.round(ms / 1000)} s` : `${(ms / 1000).toFixed(1)} s`);

const reading = ({ queue, total, cache, processed, time_ms: time }) => {
  if (queue === 0) return "Waiting: yours is next";
  if (queue) return `Waiting: ${queue} ${queue === 1 ? "request comes" : "requests come"} before yours`;
  const known = cache ? `, ${cache} known already` : "";
  const rate = time > 0 ? (processed - cache) / time : 0;
  const left = rate > 0 && total > processed ? `, ${seconds((total - processed) / rate)} left` : "";
  return `Reading: ${processed} of ${total} tokens${known}${left}`;
};

// Why an answer ends where it does, if the model has not ended it.
const CLOSED = "the page was closed";
const numbers = ({ usage, began, first, last, stopped, closed, reason }) => {
  const parts = [];
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`${usage.prompt_tokens} tokens read${cached ? ` (${cached} known already)` : ""}`);
    const generated = usage.completion_tokens;
    const rate = last > first && generated > 1 ? `, ${((generated - 1) / (last - first) * 1000).toFixed(1)} per second` : "";
    parts.push(`${generated} generated${rate}`);
  }
  if (first) parts.push(`first after ${seconds(first - began)}`);
  if (stopped) parts.push("stopped");
  if (closed) parts.push(CLOSED);
  if (reason === "length") parts.push("ended by the most tokens or the context");
  return parts.join(" · ");
};

// What is shown of an answer that has ended; `cut`: it can be continued.
const outcome = (answer, failed) => {
  const cut = answer.stopped || answer.closed || answer.reason === "length" || failed;
  const warned = answer.warnings.join("; ");
  return { numbers: numbers(answer), ...(warned ? { warned } : {}), ...(failed ? { failed } : {}), ...(cut ? { cut: "yes" } : {}) };
};

const keep = (answer) => {
  answer.saved = performance.now();
  answer.node.at = Date.now();
  answer.kept = conversations.save(answer.conversation);
};

// Adds to a message what a chunk of the stream brings.
const take = (answer, chunk) => {
  const { node } = answer;
  if (chunk.prompt_progress && !answer.first) answer.status = reading(chunk.prompt_progress);
  if (chunk.usage) answer.usage = chunk.usage;
  if (chunk.model) node.model = chunk.model;
  if (chunk.warnings) answer.warnings = chunk.warnings;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { content, reasoning_content: thinking, tool_calls: calls } = choice.delta ?? {};
  if (content || thinking || calls) {
    answer.last = performance.now();
    if (!answer.first) { answer.first = answer.last; answer.status = "Answering"; }
  }
  if (content) node.content += content;
  if (thinking) node.reasoning_content = (node.reasoning_content ?? "") + thinking;
  for (const call of calls ?? []) {
    const known = (node.tool_calls ??= []);
    if (call.id) known.push({ id: call.id, type: "function", function: { ...call.function } });
    // What follows the first piece of a call are more of its arguments.
    else if (known[call.index]) known[call.index].function.arguments += call.function.arguments;
  }
  if (choice.finish_reason) answer.reason = choice.finish_reason;
};

// Has a conversation answered in `node`, a message of the assistant at the end of its branch. If it has text already, that is continued.
// `options()` are the fields of the request besides the messages.
const start = async (conversation, node, options) => {
  const abort = new AbortController();
  const answer = { conversation, node, abort, status: "Waiting for the server", began: performance.now(), first: 0, last: 0, warnings: [], kept: true };
  running.set(conversation.id, answer);
  const continued = Boolean(node.content);
  if (!continued) delete node.reasoning_content;
  node.shown = { running: tabs.me };
  keep(answer);
  watcher(conversation, node, "began");
  const each = (chunk) => {
    take(answer, chunk);
    if (performance.now() - answer.saved > SAVE_EVERY) keep(answer);
    watcher(conversation, node, "grew");
  };
  let failed = "";
  try {
    const messages = tree.forServer(conversation, continued ? node.id : node.parent);
    const body = {
      ...options(), messages, stream: true, stream_options: { include_usage: true }, return_progress: true,
      ...(continued ? { continue_final_message: true } : {}),
    };
    await stream("/v1/chat/completions", body, answer.abort.signal, each);
  } catch (error) {
    if (answer.abort.signal.aborted) answer.stopped = true;
    else if (!answer.closed) failed = error.message;
  }
  running.delete(conversation.id);
  node.shown = outcome(answer, failed);
  keep(answer);
  watcher(conversation, node, "ended", answer);
};

const of = (conversation) => running.get(conversation.id);

const stop = (conversation) => of(conversation)?.abort.abort();

tabs.onStop((id) => { for (const { node, abort } of running.values()) if (node.id === id) abort.abort(); });

// The page is closed or loaded again, and its streams end: their text stays, and can be continued.
addEventListener("pagehide", () => {
  for (const answer of running.values()) {
    answer.closed = true;
    answer.node.shown = outcome(answer);
    keep(answer);
  }
});

// Ends the answers of pages that are gone. Resolves to true if there were some.
const endCutOff = async (conversation) => {
  let ended = false;
  for (const node of conversation.nodes.filter((one) => one.shown?.running)) {
    const owner = node.shown.running;
    if (await tabs.isHere(owner) || node.shown?.running !== owner) continue;
    node.shown = { numbers: CLOSED, cut: "yes" };
    ended = true;
  }
  return ended;
};

// The answer in progress of a conversation, here or in another tab, on whichever branch.
const inProgress = (conversation) => conversation.nodes.find((node) => node.shown?.running);

Alight.answers = {
  start, of, stop, endCutOff, inProgress, all: () => [...running.values()], isFull: () => running.size >= MAX_RUNNING, MAX_RUNNING,
  watch: (call) => { watcher = call; },
};
