// The tabs of this page, which ask each other for answers in progress. An answer belongs to the page that reads its stream.

const { newId } = Alight;
// The name of this page until it is closed or loaded again.
const me = newId();
// A page that does not answer within this time is gone.
const PATIENCE = 1500;

const channel = typeof BroadcastChannel === "function" ? new BroadcastChannel("alight") : null;
let stop = () => {};
// By name: the question whether a page is there.
const questions = new Map();

channel?.addEventListener("message", ({ data }) => {
  if (data.ask === me) channel.postMessage({ here: me });
  else if (data.here) questions.get(data.here)?.resolve(true);
  else if (data.stop) stop(data.stop);
});

// Whether the page of this name is still there.
const isHere = (name) => {
  if (name === me || !channel) return Promise.resolve(name === me);
  const asked = questions.get(name);
  if (asked) return asked.answer;
  const question = {};
  question.answer = new Promise((resolve) => { question.resolve = resolve; });
  questions.set(name, question);
  channel.postMessage({ ask: name });
  setTimeout(() => { questions.delete(name); question.resolve(false); }, PATIENCE);
  return question.answer;
};

Alight.tabs = {
  me,
  isHere,
  // Asks the others to stop an answer, by the id of its message.
  stopElsewhere: (id) => channel?.postMessage({ stop: id }),
  onStop: (act) => { stop = act; },
};
