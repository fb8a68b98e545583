// Vercel's AI SDK, by plans as plan.py describes them. `api` may also be "compatible": chat completions by the package for compatible servers; and `agent`
// says that calls are made by the package's agent, as it is without a number of steps.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, Output, streamText, tool, ToolLoopAgent } from "ai";
import { z } from "zod";

const called = [];

/** A tool that notes its calls. */
const noting = (name, description, inputSchema, result) =>
  tool({
    description,
    inputSchema,
    execute: (input) => {
      called.push([name, input]);
      return result(input);
    },
  });

const tools = {
  read_note: noting("read_note", "Reads a line of a note.", z.object({ name: z.string(), line: z.number().int() }), (input) =>
    `Line ${input.line} of ${input.name} is empty.`),
  write_note: noting("write_note", "Writes a note.", z.object({ name: z.string(), text: z.string(), tags: z.array(z.string()) }), (input) =>
    `${input.name} has ${input.text.length} characters and ${input.tags.length} tags.`),
  add: noting("add", "Adds two numbers.", z.object({ a: z.number(), b: z.number() }), (input) => `The sum is ${input.a + input.b}.`),
};
const weather = z.object({ city: z.string(), degrees: z.number().int(), rain: z.boolean() });

/** The model, by one of the interfaces. */
const modelOf = ({ address, api }) => {
  const [baseURL, apiKey] = [`${address}/v1`, "none"];
  return {
    compatible: () => createOpenAICompatible({ name: "alight", baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true })("any"),
    chat: () => createOpenAI({ baseURL, apiKey }).chat("any"),
    responses: () => createOpenAI({ baseURL, apiKey })("any"),
    messages: () => createAnthropic({ baseURL, apiKey })("any"),
  }[api]();
};

/** What a stream comes to, in the shape of a whole answer. The package hands errors to a callback. */
const whole = async (begin, form) => {
  let failed;
  const result = await begin((error) => { failed ??= error; });
  await result.consumeStream({ onError: (error) => { failed ??= error; } });
  if (failed) throw failed.error ?? failed;
  const [text, steps, responseMessages] = [await result.text, await result.steps, await result.responseMessages];
  return { text, steps, responseMessages, output: form ? await result.output : undefined };
};

/** A message of the user, answered. */
const answered = async (plan, settings) => {
  if (plan.agent) {
    const agent = new ToolLoopAgent({ model: settings.model, instructions: plan.system, tools });
    return plan.stream ? whole(() => agent.stream({ messages: settings.messages })) : agent.generate({ messages: settings.messages });
  }
  if (!plan.stream) return generateText(settings);
  return whole((onError) => streamText({ ...settings, onError }), plan.kind === "form");
};

/** All messages of the user. */
const conversation = async (plan) => {
  const settings = { model: modelOf(plan), instructions: plan.system };
  if (plan.kind === "form") settings.output = Output.object({ schema: weather });
  if (plan.kind === "tools") Object.assign(settings, { tools, stopWhen: isStepCount(plan.turns) });
  const [texts, thinking] = [[], []];
  let [messages, form] = [[], null];
  for (const content of plan.messages) {
    messages.push({ role: "user", content });
    const result = await answered(plan, { ...settings, messages });
    messages = [...messages, ...result.responseMessages];
    texts.push(result.text);
    thinking.push(...result.steps.map((step) => step.reasoningText).filter(Boolean));
    if (plan.kind === "form") form = result.output;
  }
  return { texts, thinking, form };
};

for (const plan of JSON.parse(process.argv[2])) {
  called.length = 0;
  let seen;
  try {
    seen = await conversation(plan);
  } catch (error) {
    seen = { error: `${error.stack} ${error.responseBody ?? ""}`.slice(0, 2000) };
  }
  console.log(`RESULT ${JSON.stringify({ calls: called, ...seen })}`);
}
