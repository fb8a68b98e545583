// Unchanged clients for Node against `alight serve`: openai, @anthropic-ai/sdk and ollama.
//
//   node clients.js '{"address": …, "expected": …, "chat": […], "tool": {…}, "seed": …, "tokens": …}'
//
// Prints a JSON object {good, text} for each check. `python -m evidence check clients` runs it, and says what they are compared with.

import Anthropic from "@anthropic-ai/sdk";
import { Ollama } from "ollama";
import OpenAI from "openai";

const { address, expected, chat, tool, seed, tokens } = JSON.parse(process.argv[2]);
const check = (good, text) => console.log(JSON.stringify({ good: Boolean(good), text: `node ${text}` }));

/** An HTTP layer that counts its requests. */
const counted = () => {
  const counts = { requests: 0 };
  const ask = (...args) => {
    counts.requests += 1;
    return fetch(...args);
  };
  return [counts, ask];
};

/** The error of what must fail; undefined, if it does not. */
const errorOf = async (work) => {
  try {
    await work();
  } catch (error) {
    return error;
  }
};

const withOpenai = async () => {
  const client = new OpenAI({ baseURL: `${address}/v1`, apiKey: "none" });
  const ask = { model: "any", messages: chat, seed, max_completion_tokens: tokens };
  const whole = await client.chat.completions.create(ask);
  check(whole.choices[0].message.content === expected, "openai: the answer is that of alight run");

  let [text, usage] = ["", null];
  for await (const chunk of await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  check(text === expected, "openai: the streamed answer is the whole one");
  check(usage?.total_tokens === whole.usage.total_tokens, "openai: usage of a stream");
  const final = await client.chat.completions.stream({ ...ask, stop: [" "], max_completion_tokens: 200 }).finalContent();
  check(final === expected.split(" ")[0], "openai: the package's own assembly of a stream");

  const told = await client.chat.completions.create({ ...ask, logprobs: true, top_logprobs: 2 });
  const all = told.choices[0].logprobs.content;
  const joined = Buffer.concat(all.map((token) => Buffer.from(token.bytes))).toString();
  check(joined === expected && all.every((token) => token.top_logprobs.length === 2), "openai: logprobs of each token");

  const tools = [{ type: "function", function: tool }];
  const called = await client.chat.completions.create({ ...ask, tools, tool_choice: "required", max_completion_tokens: 200 });
  const call = called.choices[0].message.tool_calls[0].function;
  check(call.name === tool.name && "city" in JSON.parse(call.arguments), "openai: a tool is called if the client insists");

  const schema = {
    type: "object", properties: { cat: { type: "boolean" } }, required: ["cat"], additionalProperties: false,
  };
  const held = await client.chat.completions.parse({
    ...ask, max_completion_tokens: 60, response_format: { type: "json_schema", json_schema: { name: "cat", schema, strict: true } },
  });
  check(typeof held.choices[0].message.parsed.cat === "boolean", "openai: an answer is held to its schema");

  const response = await client.responses.create({ model: "any", input: chat[0].content, max_output_tokens: tokens, seed });
  check(response.output_text === expected, "openai: a response is the answer of alight run");
  let said = "";
  for await (const event of client.responses.stream({ model: "any", input: chat[0].content, max_output_tokens: tokens, seed })) {
    said += event.type === "response.output_text.delta" ? event.delta : "";
  }
  check(said === expected, "openai: a streamed response is the whole one");

  // The package asks for base64 unless it is told otherwise.
  const vectors = (await client.embeddings.create({ model: "any", input: ["The sky is blue.", "A cat sleeps.", "The sky is blue."] })).data;
  const dot = (a, b) => a.embedding.reduce((sum, x, i) => sum + x * b.embedding[i], 0);
  check(Math.abs(dot(vectors[0], vectors[2]) - 1) < 1e-4 && dot(vectors[0], vectors[1]) < 0.9999, "openai: embeddings of length 1");

  for (const stream of [false, true]) {
    const [counts, ask_] = counted();
    const careless = new OpenAI({ baseURL: `${address}/v1`, apiKey: "none", fetch: ask_ });
    const error = await errorOf(() => careless.chat.completions.create({ ...ask, temperature: -1, stream }));
    const good = error instanceof OpenAI.BadRequestError && error.message.includes("temperature") && counts.requests === 1;
    check(good, `openai: a mistake is an error of one request${stream ? ", streamed" : ""}`);
  }

  const stream = await client.chat.completions.create({ ...ask, max_completion_tokens: 2000, ignore_eos: true, stream: true });
  let pieces = 0;
  for await (const _ of stream) {
    pieces += 1;
    if (pieces === 3) stream.controller.abort();
  }
  check(pieces < 100, "openai: a stream that is aborted ends");
};

const withAnthropic = async () => {
  const client = new Anthropic({ baseURL: address, apiKey: "none" });
  // What the package's types do not know goes past them.
  const ask = { model: "any", messages: chat, max_tokens: tokens, seed };
  const whole = await client.messages.create(ask);
  check(whole.content[0].text === expected, "anthropic: the answer is that of alight run");
  let text = "";
  const final = await client.messages.stream(ask).on("text", (piece) => (text += piece)).finalMessage();
  check(text === expected && final.content[0].text === expected, "anthropic: the streamed answer is the whole one");
  const counted_ = await client.messages.countTokens({ model: "any", messages: chat });
  const { input_tokens, cache_read_input_tokens } = final.usage;
  check(counted_.input_tokens === input_tokens + cache_read_input_tokens, "anthropic: counted tokens are those that were read");
  const tools = [{ name: tool.name, description: tool.description, input_schema: tool.parameters }];
  const used = await client.messages.create({ ...ask, max_tokens: 200, tools, tool_choice: { type: "any" } });
  const block = used.content.find((one) => one.type === "tool_use");
  check(used.stop_reason === "tool_use" && block?.name === tool.name && "city" in block.input, "anthropic: a tool is called if the client insists");
  const [counts, ask_] = counted();
  const careless = new Anthropic({ baseURL: address, apiKey: "none", fetch: ask_ });
  const error = await errorOf(() => careless.messages.create({ ...ask, messages: [{ role: "user", content: "word ".repeat(9000) }] }));
  check(error instanceof Anthropic.BadRequestError && counts.requests === 1, "anthropic: a prompt that does not fit is an error of one request");
};

const withOllama = async () => {
  const client = new Ollama({ host: address });
  check((await client.list()).models[0].model === "smol", "ollama: the model is listed");
  const ask = { model: "smol", messages: chat, options: { seed, num_predict: tokens, num_ctx: 2048 } };
  const whole = await client.chat(ask);
  check(whole.message.content === expected, "ollama: the answer is that of alight run");
  let text = "";
  for await (const piece of await client.chat({ ...ask, stream: true })) text += piece.message.content;
  check(text === expected, "ollama: the streamed answer is the whole one");
  const { embeddings } = await client.embed({ model: "smol", input: ["one", "two"] });
  check(embeddings.length === 2, "ollama: embeddings");
  const error = await errorOf(() => client.chat({ ...ask, options: { temperature: -1 } }));
  check(error?.status_code === 400 && error.message.includes("temperature"), "ollama: a mistake is said");
};

await withOpenai();
await withAnthropic();
await withOllama();
