// Every kind of stream of the Assistants API, through any version of OpenAI's Node client; that of 7.x is the strictest helper of all, and
// fails on everything that is out of order. Prints what was seen of each as JSON.
//   NODE_CLIENTS=DIRECTORY node variants.mjs BASE_URL KEY MODEL
// `variants.py` is the same for Python, and prints the same. The server's runs expire after eight seconds.
import assert from "node:assert";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.NODE_CLIENTS, "node_modules/"));
const { version } = JSON.parse(readFileSync(join(process.env.NODE_CLIENTS, "node_modules/openai/package.json")));
const module = require("openai");
const OpenAI = module.OpenAI ?? module.default ?? module;
const [baseURL, apiKey, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const { assistants, threads } = client.beta;
// The 4.x client takes the ids one after the other.
const isFirst = version.startsWith("4.");
const ofRun = (run, ...more) => (isFirst ? [run.thread_id, run.id, ...more] : [run.id, { thread_id: run.thread_id, ...more[0] }]);
const stepsOf = (run) => (isFirst ? threads.runs.steps.list(run.thread_id, run.id, { order: "asc" }) : threads.runs.steps.list(run.id, { thread_id: run.thread_id, order: "asc" }));

const parameters = { type: "object", properties: { city: { type: "string" } } };
const tools = [{ type: "code_interpreter" }, { type: "function", function: { name: "get_weather", parameters } }];
const assistant = await assistants.create({ model, instructions: "Compute.", tools });
const asked = async (content) => (await threads.create({ messages: [{ role: "user", content }] })).id;
const content = async (id) => Buffer.from(await (await client.files.content(id)).arrayBuffer());

// The text, the programs and the output that the helper tells in pieces.
const hear = async (stream, cancels = false) => {
  // Without a listener it ends the process; the promise below tells the same.
  stream.on("error", () => {});
  const heard = { stream, text: "", code: "", logs: "", pieces: 0 };
  stream.on("textDelta", (delta) => (heard.text += delta.value ?? ""));
  stream.on("toolCallDelta", (delta) => {
    heard.code += delta.code_interpreter?.input ?? "";
    for (const output of delta.code_interpreter?.outputs ?? []) {
      if (output.type !== "logs") continue;
      heard.logs += output.logs ?? "";
      heard.pieces += 1;
      if (cancels) {
        cancels = false;
        threads.runs.cancel(...ofRun(stream.currentRun()));
      }
    }
  });
  heard.run = await stream.finalRun();
  return heard;
};
const streamed = async (question, cancels = false) =>
  hear(threads.runs.stream(await asked(question), { assistant_id: assistant.id }), cancels);

// The common part of all clients: the run, its steps and messages as the helper put them together, against the stored ones.
const told = async ({ stream, run, text, code, logs }) => {
  const messages = text ? await stream.finalMessages() : [];
  const stored = (await stepsOf(run)).data;
  for (const step of await stream.finalRunSteps()) assert.equal(step.status, stored.find((other) => other.id === step.id).status);
  const programs = stored.flatMap((step) => step.step_details.tool_calls ?? []).flatMap((call) => call.code_interpreter ?? []);
  assert.equal(code, programs.map((program) => program.input).join(""));
  const parts = messages.flatMap((message) => message.content);
  assert.equal(text, parts.map((part) => part.text?.value ?? "").join(""));
  return {
    status: run.status,
    steps: stored.map((step) => step.status),
    text,
    parts: parts.map((part) => part.type),
    // A program that is interrupted says so at its own pace.
    logs: run.status === "completed" ? logs : logs.slice(0, 3),
    outputs: programs.flatMap((program) => program.outputs.map((output) => output.type)),
    ended: [run.usage !== null, run.expires_at],
  };
};

const variants = {
  text: async () => told(await streamed("hello")),
  "one program": async () => told(await streamed("the factorial of 7?")),
  "two programs": async () => told(await streamed("two programs")),
  "two at once": async () => told(await streamed("two at once")),
  "text before a program": async () => told(await streamed("talks first")),
  "a program that fails": async () => told(await streamed("fails first")),
  "a picture": async () => {
    const heard = await streamed("a chart");
    const [image] = (await heard.stream.finalMessages()).at(-1).content;
    return [(await content(image.image_file.file_id)).toString("latin1").slice(1, 4), await told(heard)];
  },
  "a link to a file": async () => {
    const heard = await streamed("three programs and a link");
    const [{ text }] = (await heard.stream.finalMessages()).at(-1).content;
    const [annotation] = text.annotations;
    const characters = [...text.value].slice(annotation.start_index, annotation.end_index);
    assert.equal(characters.join(""), annotation.text);
    return [annotation.text, (await content(annotation.file_path.file_id)).toString(), await told(heard)];
  },
  "a function": async () => {
    const { run } = await streamed("runs and asks");
    const [call] = run.required_action.submit_tool_outputs.tool_calls;
    const tool_outputs = [{ tool_call_id: call.id, output: "sunny" }];
    const rest = await hear(threads.runs.submitToolOutputsStream(...ofRun(run, { tool_outputs })));
    const steps = (await stepsOf(run)).data;
    return [run.status, call.function.arguments, rest.run.status, rest.text, rest.logs, steps.map((step) => step.status)];
  },
  "with its thread": async () => {
    const thread = { messages: [{ role: "user", content: "the factorial of 7?" }] };
    return told(await hear(threads.createAndRunStream({ assistant_id: assistant.id, thread })));
  },
  polled: async () => {
    const ask = async (question) => threads.runs.createAndPoll(await asked(question), { assistant_id: assistant.id });
    const began = Date.now();
    const run = await ask("2**20");
    // Without the server's word on when to poll again, these clients wait for five seconds.
    assert.ok(Date.now() - began < 4000);
    const waits = await ask("the weather");
    const [call] = waits.required_action.submit_tool_outputs.tool_calls;
    const answered = await threads.runs.submitToolOutputsAndPoll(...ofRun(waits, { tool_outputs: [{ tool_call_id: call.id, output: "sunny" }] }));
    const [answer] = (await threads.messages.list(answered.thread_id, { limit: 1 })).data;
    return [run.status, waits.status, answered.status, answer.content[0].text.value];
  },
  "live output": async () => {
    const heard = await streamed("counts slowly");
    return [heard.pieces > 1, await told(heard)];
  },
  failed: async () => {
    const { run } = await streamed("upstream says 400");
    return [run.status, run.last_error.code, run.usage.total_tokens];
  },
  cancelled: async () => told(await streamed("runs long", true)),
  expired: async () => told(await streamed("runs long")),
  incomplete: async () => {
    const heard = await streamed("stops short");
    const [message] = (await threads.messages.list(heard.run.thread_id, { run_id: heard.run.id })).data;
    return [heard.run.incomplete_details.reason, message.status, await told(heard)];
  },
};
const seen = {};
for (const [name, variant] of Object.entries(variants)) {
  try {
    seen[name] = await variant();
  } catch (error) {
    seen[name] = `${error.constructor.name}: ${error.message}`;
  }
}
console.log(JSON.stringify(seen));
