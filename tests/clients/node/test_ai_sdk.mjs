// The AI SDK of Vercel, with its provider for compatible servers and the one for OpenAI itself.

import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, Output, streamObject, streamText } from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false;
const baseURL = process.env.BASE_URL;
const compatible = (settings) =>
  createOpenAICompatible({ name: "stemma", baseURL, apiKey: "unused", includeUsage: true, ...settings })("default");
const models = {
  compatible: compatible({ supportsStructuredOutputs: true }),
  openai: createOpenAI({ baseURL, apiKey: "unused" }).chat("default"),
};
const prompt = "What is the capital of France?";
const City = z.object({ name: z.string().max(20), population: z.number().int().min(1).max(99_999_999) });

for (const [provider, model] of Object.entries(models)) {
  const asked = { model, prompt, temperature: 0, maxOutputTokens: 16, maxRetries: 0 };

  test(`${provider}: generateText`, async () => {
    const { text, finishReason, usage } = await generateText({ ...asked, system: "You are a helpful assistant." });

    assert.match(text, /Paris/);
    assert.ok(["stop", "length"].includes(finishReason));
    assert.ok(usage.outputTokens > 0);
  });

  test(`${provider}: streamText says what generateText says`, async () => {
    const whole = await generateText(asked);

    const result = streamText(asked);
    const parts = [];
    for await (const part of result.textStream) parts.push(part);

    assert.equal(parts.join(""), whole.text);
    assert.ok(parts.length > 1);
    assert.equal((await result.usage).outputTokens, whole.usage.outputTokens);
    assert.equal(await result.finishReason, whole.finishReason);
  });

  test(`${provider}: generateObject`, async () => {
    const { object } = await generateObject({ ...asked, maxOutputTokens: 200, schema: City });

    City.parse(object);
  });

  test(`${provider}: generateText with an output of a shape`, async () => {
    const { output } = await generateText({ ...asked, maxOutputTokens: 200, output: Output.object({ schema: City }) });

    City.parse(output);
  });

  test(`${provider}: streamObject`, async () => {
    const { partialObjectStream, object } = streamObject({ ...asked, maxOutputTokens: 200, schema: City });
    for await (const partial of partialObjectStream) assert.equal(typeof partial, "object");

    City.parse(await object);
  });

  test(`${provider}: a refusal is the SDK's own error`, async () => {
    const refused = generateText({ ...asked, temperature: 3 });

    await assert.rejects(refused, (error) => APICallError.isInstance(error) && error.statusCode === 400);
  });
}
