// Requests to the server: always to where the page is from.

// It is kept until the tab is closed, and not on the disk.
let key = "";
try { key = sessionStorage.getItem("alight.key") ?? ""; } catch { /* There is no key then. */ }

const setKey = (text) => {
  key = text.trim();
  try { sessionStorage.setItem("alight.key", key); } catch { /* It holds until the page is closed. */ }
};

const headers = () => (key ? { Authorization: `Bearer ${key}` } : {});

const refusal = async (response) => {
  let message = `the server says ${response.status}`;
  try { message = (await response.json()).error.message ?? message; } catch { /* The number has to do. */ }
  if (response.status === 401) message += " (Settings, API key)";
  return new Error(message);
};

const get = async (path) => {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok) throw await refusal(response);
  return response.json();
};

// Calls `each` with every event of a stream.
const stream = async (path, body, signal, each) => {
  const response = await fetch(path, {
    method: "POST",
    headers: { ...headers(), "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "", ended = false; !ended;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the connection has ended before the answer did");
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue;
      const data = event.slice(6);
      if (data === "[DONE]") { ended = true; break; }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      each(chunk);
    }
  }
};

Object.assign(Alight, { get, stream, setKey, key: () => key });
