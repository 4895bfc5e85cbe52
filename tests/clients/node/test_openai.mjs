// OpenAI's SDK for Node.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI, { BadRequestError } from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "unused" });
const asked = {
  model: "default",
  messages: [{ role: "user", content: "What is the capital of France?" }],
  temperature: 0,
  max_tokens: 16,
};
const City = z.object({ name: z.string().max(20), population: z.number().int().min(1).max(99_999_999) });

test("an answer", async () => {
  const { data, request_id } = await client.chat.completions.create(asked).withResponse();

  assert.match(data.choices[0].message.content, /Paris/);
  assert.ok(data.usage.completion_tokens > 0);
  assert.ok(request_id);
});

test("a stream says what the answer says", async () => {
  const whole = await client.chat.completions.create(asked);

  const stream = await client.chat.completions.create({
    ...asked,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }

  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test("the stream helper rebuilds the answer", async () => {
  const stream = client.chat.completions.stream(asked);
  let text = "";
  stream.on("content", (delta) => (text += delta));

  const final = await stream.finalChatCompletion();

  assert.match(text, /Paris/);
  assert.equal(final.choices[0].message.content, text);
});

test("parse gives what the schema of zod says", async () => {
  const answer = await client.chat.completions.parse({
    ...asked,
    max_tokens: 200,
    response_format: zodResponseFormat(City, "city"),
  });

  assert.deepEqual(City.parse(answer.choices[0].message.parsed), answer.choices[0].message.parsed);
});

test("a stream left early ends", async () => {
  const stream = await client.chat.completions.create({ ...asked, max_tokens: 2000, ignore_eos: true, stream: true });

  for await (const chunk of stream) {
    if (chunk.choices[0].delta.content) break;
  }

  assert.ok(stream.controller.signal.aborted);
});

test("a refusal is the SDK's own error", async () => {
  const refused = client.chat.completions.create({ ...asked, temperature: 3 });

  await assert.rejects(refused, (error) => error instanceof BadRequestError && error.param === "temperature");
});

test("models are listed", async () => {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);

  assert.deepEqual(names, ["default"]);
});
