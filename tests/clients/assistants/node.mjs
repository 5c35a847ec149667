// Runs of assistants by OpenAI's Node client, whose helper is the strictest of all. Prints what it heard as one line of JSON.
//   node node.mjs BASE_URL KEY MODEL
import assert from "node:assert";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const modules = join(process.env.NODE_CLIENTS, "node_modules/");
const { OpenAI } = await import(pathToFileURL(createRequire(modules).resolve("openai")));
const [baseURL, apiKey, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const { assistants, threads } = client.beta;

const parameters = { type: "object", properties: { city: { type: "string" } } };
const tools = [{ type: "code_interpreter" }, { type: "function", function: { name: "get_weather", parameters } }];
const assistant = await assistants.create({ model, instructions: "Compute.", tools });
const asked = (content) => threads.create({ messages: [{ role: "user", content }] });
const textOf = (message) => message.content.filter((part) => part.type === "text").map((part) => part.text.value).join("");

const heard = {};

// The helper fails on everything that is out of order.
for (const question of ["the factorial of 7?", "two programs", "two at once", "talks first", "fails first", "a chart", "three programs and a link"]) {
  const stream = threads.runs.stream((await asked(question)).id, { assistant_id: assistant.id });
  let code = "";
  stream.on("toolCallDelta", (delta) => (code += delta.code_interpreter?.input ?? ""));
  const run = await stream.finalRun();
  assert.equal(run.status, "completed", question);
  const steps = await stream.finalRunSteps();
  assert.deepEqual([...new Set(steps.map((step) => step.status))], ["completed"], question);
  heard[question] = [textOf((await stream.finalMessages()).at(-1)), code.length > 0];
}

// A function of the client's, answered in a stream of its own.
const thread = await asked("runs and asks");
const first = threads.runs.stream(thread.id, { assistant_id: assistant.id });
const waiting = await first.finalRun();
assert.equal(waiting.status, "requires_action");
const [call] = waiting.required_action.submit_tool_outputs.tool_calls;
const tool_outputs = [{ tool_call_id: call.id, output: "sunny" }];
const rest = threads.runs.submitToolOutputsStream(waiting.id, { thread_id: thread.id, tool_outputs });
assert.equal((await rest.finalRun()).status, "completed");
heard.answered = textOf((await rest.finalMessages()).at(-1));

// Polling by the server's interval takes no time.
const began = Date.now();
const polled = await threads.createAndRunPoll({
  assistant_id: assistant.id,
  thread: { messages: [{ role: "user", content: "2**20" }] },
});
heard.polled = [polled.status, Date.now() - began < 4000];

// Runs that end early.
const cancelled = await asked("runs long");
const running = threads.runs.stream(cancelled.id, { assistant_id: assistant.id });
running.once("toolCallDelta", () => threads.runs.cancel(running.currentRun().id, { thread_id: cancelled.id }));
heard.cancelled = (await running.finalRun()).status;
const failed = threads.runs.stream((await asked("upstream says 400")).id, { assistant_id: assistant.id });
heard.failed = (await failed.finalRun()).last_error.code;

const names = [];
for await (const message of threads.messages.list(thread.id, { limit: 1 })) names.push(message.role);
heard.listed = names;
console.log(JSON.stringify(heard));
