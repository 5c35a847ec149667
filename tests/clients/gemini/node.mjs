// The official Node client, unchanged: interactions whole, as streams, continued, in the background, and refused.
import assert from "node:assert/strict";
import { GoogleGenAI } from "@google/genai";

const client = new GoogleGenAI({ apiKey: "any", httpOptions: { baseUrl: process.argv[2] } });
const { interactions } = client;
const usual = { model: process.argv[3], tools: [{ type: "code_execution" }] };

const first = await interactions.create({ ...usual, input: "set y" });
assert.equal(first.status, "completed");
assert.deepEqual(first.steps.map((step) => step.type), ["code_execution_call", "code_execution_result", "model_output"]);
assert.equal(first.steps[1].call_id, first.steps[0].id);
const next = await interactions.create({ ...usual, input: [{ type: "text", text: "get y" }], previous_interaction_id: first.id });
assert.equal(next.steps.at(-1).content[0].text, "y is kept.");
assert.equal(next.environment_id, first.environment_id);

const events = [];
for await (const event of await interactions.create({ ...usual, input: "a chart", stream: true })) events.push(event);
assert.deepEqual(events.slice(0, 2).map((event) => event.event_type), ["interaction.created", "interaction.status_update"]);
assert.equal(events.at(-1).event_type, "interaction.completed");
const image = events.find((event) => event.delta?.type === "image").delta;
assert.equal(image.mime_type, "image/png");
assert.deepEqual([...Buffer.from(image.data, "base64").subarray(1, 4)], [..."PNG"].map((letter) => letter.charCodeAt(0)));
const { id } = events[0].interaction;
const again = [];
for await (const event of await interactions.get(id, { stream: true, last_event_id: events[3].event_id })) again.push(event);
assert.deepEqual(again, events.slice(4));

const tools = [...usual.tools, { type: "function", name: "get_weather", parameters: { type: "object", properties: {} } }];
const asks = await interactions.create({ ...usual, tools, input: "weather" });
assert.equal(asks.status, "requires_action");
const call = asks.steps.at(-1);
const result = { type: "function_result", call_id: call.id, name: call.name, result: "sunny" };
const answer = await interactions.create({ ...usual, tools, input: [result], previous_interaction_id: asks.id });
assert.equal(answer.steps.at(-1).content[0].text, "It is sunny in Paris.");

let polled = await interactions.create({ ...usual, input: "2**20", background: true });
for (let tries = 0; polled.status !== "completed" && tries < 600; tries++) {
  await new Promise((done) => setTimeout(done, 100));
  polled = await interactions.get(polled.id);
}
assert.match(polled.steps.at(-1).content[0].text, /1048576/);
assert.equal((await interactions.cancel(polled.id)).status, "completed");
await interactions.delete(polled.id);
await assert.rejects(interactions.get(polled.id), (error) => error.status === 404);
await assert.rejects(interactions.create({ ...usual, input: "hello", tools: [{ type: "url_context" }] }), /url_context/);
console.log("ok");
