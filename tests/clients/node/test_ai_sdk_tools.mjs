// Tools through the AI SDK of Vercel.

import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false;
const baseURL = process.env.BASE_URL;
const models = {
  compatible: createOpenAICompatible({ name: "stemma", baseURL, apiKey: "unused" })("default"),
  openai: createOpenAI({ baseURL, apiKey: "unused" }).chat("default"),
};
const City = z.object({ city: z.string().max(20) });
const get_weather = tool({
  description: "The weather in a city.",
  inputSchema: City,
  strict: true,
  execute: async ({ city }) => ({ city, degrees: 21 }),
});

for (const [provider, model] of Object.entries(models)) {
  const asked = {
    model,
    prompt: "What is the weather in Paris?",
    temperature: 0,
    maxOutputTokens: 256,
    maxRetries: 0,
    tools: { get_weather },
    toolChoice: "required",
  };

  test(`${provider}: generateText calls the tool`, async () => {
    const { toolCalls, toolResults, finishReason } = await generateText(asked);

    assert.equal(finishReason, "tool-calls");
    City.parse(toolCalls[0].input);
    assert.equal(toolResults[0].output.degrees, 21);
  });

  test(`${provider}: streamText calls the tool`, async () => {
    const result = streamText({ ...asked, toolChoice: { type: "tool", toolName: "get_weather" } });
    await result.consumeStream();

    const calls = await result.toolCalls;
    assert.equal(calls.length, 1);
    City.parse(calls[0].input);
  });

  test(`${provider}: a second step answers with the tool's result`, async () => {
    const { steps, text } = await generateText({
      ...asked,
      stopWhen: stepCountIs(2),
      prepareStep: ({ stepNumber }) => (stepNumber === 0 ? {} : { toolChoice: "none" }),
    });

    assert.equal(steps.length, 2);
    assert.ok(text.length > 0);
  });
}
