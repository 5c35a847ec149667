// The official Node client, unchanged: its stream helper throws on any event that it does not know.
import assert from "node:assert/strict";
import OpenAI, { toFile } from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";

const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "unused" });
const tools = [{ type: "code_interpreter", container: { type: "auto" } }];
const include = ["code_interpreter_call.outputs"];

const stream = client.responses.stream({ model: "gpt-5", input: "Draw a chart", tools, include });
const kinds = [];
for await (const event of stream) kinds.push(event.type);
const response = await stream.finalResponse();
assert.equal(response.status, "completed");
assert.equal(kinds.at(-1), "response.completed");
const program = response.output.find((item) => item.type === "code_interpreter_call");
const shown = Buffer.from(program.outputs[0].url.split(",")[1], "base64");
const note = response.output.at(-1).content[0].annotations[0];
const file = await client.containers.files.content.retrieve(note.file_id, { container_id: note.container_id });
assert.deepEqual(Buffer.from(await file.arrayBuffer()), shown);

const sales = await toFile(Buffer.from("date,amount\n2026-01-05,10\n"), "sales.csv", { type: "text/csv" });
const uploaded = await client.files.create({ file: sales, purpose: "user_data" });
const container = { type: "auto", file_ids: [uploaded.id] };
const chart = await client.responses.create({
  model: "gpt-5",
  input: "Chart sales.csv by month",
  tools: [{ type: "code_interpreter", container }],
  include,
});
assert.match(chart.output[0].outputs.at(-1).logs, /2026-01\s+10/);
const names = chart.output.at(-1).content[0].annotations.map((note) => note.filename);
assert.ok(names.includes("monthly.csv") && names.includes("monthly.png"), names);

const next = await client.responses.create({ model: "gpt-5", input: "hello", previous_response_id: chart.id });
assert.equal(next.output_text, "You said: hello");

const question = { model: "gpt-5", messages: [{ role: "user", content: "two programs" }], tools: [{ type: "code_interpreter" }] };
const completion = await client.chat.completions.create(question);
assert.equal(completion.choices[0].message.content, "x plus one is 21.");
assert.equal(completion.choices[0].message.code_interpreter_calls[1].outputs[0].logs, "21\n");
let content = "", code = "", finish;
for await (const chunk of await client.chat.completions.create({ ...question, stream: true })) {
  const { delta, finish_reason } = chunk.choices[0];
  content += delta.content ?? "";
  code += (delta.code_interpreter_calls ?? []).map((call) => call.code ?? "").join("");
  assert.equal(delta.tool_calls, undefined);
  finish = finish_reason ?? finish;
}
assert.deepEqual([content, code, finish], ["x plus one is 21.", "x = 20print(x + 1)", "stop"]);

// Its helper adds up only the fields that it knows; the message goes on in its container all the same.
const messages = [{ role: "user", content: "set y" }];
messages.push(await client.chat.completions.stream({ ...question, messages }).finalMessage(), { role: "user", content: "get y" });
const kept = await client.chat.completions.create({ ...question, messages });
assert.equal(kept.choices[0].message.content, "y is kept.");

const socket = new ResponsesWS(client);
const answer = async (input, previous_response_id) => {
  socket.send({ type: "response.create", model: "gpt-5", input, tools, previous_response_id });
  for await (const event of socket.stream()) {
    if (event.type === "error") throw event.error;
    if (event.type === "message" && event.message.type === "response.completed") return event.message.response;
  }
};
const begun = await answer("set y");
const ended = await answer("get y", begun.id);
assert.equal(ended.output.at(-1).content[0].text, "y is kept.");
socket.close();

await assert.rejects(client.responses.retrieve("resp_none"), OpenAI.NotFoundError);
console.log("ok");
