// Tools through OpenAI's SDK for Node.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodFunction } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "unused" });
const asked = {
  model: "default",
  messages: [{ role: "user", content: "What is the weather in Paris?" }],
  temperature: 0,
  max_tokens: 256,
};
const City = z.object({ city: z.string().max(20) });
const description = "The weather in a city.";

test("parse gives what the tool's schema says", async () => {
  const answer = await client.chat.completions.parse({
    ...asked,
    tools: [zodFunction({ name: "get_weather", description, parameters: City })],
    tool_choice: "required",
  });

  const [call] = answer.choices[0].message.tool_calls;
  assert.equal(answer.choices[0].finish_reason, "tool_calls");
  City.parse(call.function.parsed_arguments);
});

test("the stream helper rebuilds a call", async () => {
  const stream = client.chat.completions.stream({
    ...asked,
    tools: [zodFunction({ name: "get_weather", description, parameters: City })],
    tool_choice: "required",
    parallel_tool_calls: false,
  });

  const final = await stream.finalChatCompletion();

  assert.equal(final.choices[0].message.tool_calls.length, 1);
  City.parse(final.choices[0].message.tool_calls[0].function.parsed_arguments);
});

test("the runner calls the function", async () => {
  const cities = [];
  const runner = client.chat.completions.runTools(
    {
      ...asked,
      tool_choice: { type: "function", function: { name: "get_weather" } },
      tools: [
        zodFunction({
          name: "get_weather",
          description,
          parameters: City,
          function: ({ city }) => {
            cities.push(city);
            return "Sunny, 21 degrees.";
          },
        }),
      ],
    },
    { maxChatCompletions: 1 },
  );

  // a runner that was told which function to call ends with that function's result
  await runner.done();

  assert.equal(cities.length, 1);
  assert.deepEqual(
    runner.messages.map((message) => message.role),
    ["user", "assistant", "tool"],
  );
  assert.equal(runner.messages[2].content, "Sunny, 21 degrees.");
});
