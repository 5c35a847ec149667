// The official Node client, unchanged.
import assert from "node:assert/strict";
import Anthropic, { toFile } from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[2], apiKey: "unused" });
const tools = [{ type: "code_execution_20260120", name: "code_execution" }];
const usual = { model: "scripted", max_tokens: 1000, tools };
const user = (content) => [{ role: "user", content }];

const thinking = { type: "enabled", budget_tokens: 1024 };
const stream = client.messages.stream({ ...usual, max_tokens: 2000, thinking, messages: user("ponder two programs") });
const kinds = [];
for await (const event of stream) kinds.push(event.type);
const message = await stream.finalMessage();
assert.deepEqual([kinds[0], kinds.at(-1)], ["message_start", "message_stop"]);
const types = message.content.map((block) => block.type);
const round = ["server_tool_use", "code_execution_tool_result"];
assert.deepEqual(types, ["thinking", ...round, "thinking", ...round, "thinking", "text"]);
assert.deepEqual(message.content[1].input, { code: "x = 20" });
assert.equal(message.content[5].content.stdout, "21\n");
assert.ok(message.container.id && message.usage.output_tokens);

const whole = await client.messages.create({ ...usual, messages: user("two programs") });
assert.equal(whole.content.at(-1).text, "x plus one is 21.");

const sales = await toFile(Buffer.from("date,amount\n2026-01-05,10\n"), "sales.csv", { type: "text/csv" });
const uploaded = await client.files.upload({ file: sales });
const chart = await client.messages.create({
  ...usual,
  messages: user([
    { type: "text", text: "Chart sales.csv by month" },
    { type: "container_upload", file_id: uploaded.id },
  ]),
});
const result = chart.content.find((block) => block.type === "code_execution_tool_result").content;
assert.match(result.stdout, /2026-01\s+10/);
const names = [];
for (const { file_id } of result.content) {
  const { filename } = await client.files.retrieveMetadata(file_id);
  names.push(filename);
  if (filename === "monthly.csv") assert.match(await (await client.files.download(file_id)).text(), /2026-01,10/);
}
assert.ok(names.includes("monthly.csv") && names.includes("monthly.png"), names);

for (const thread of [false, undefined]) {
  const runner = client.beta.messages.toolRunner({
    ...usual,
    messages: user("runs and asks"),
    tools: [
      ...tools,
      {
        name: "get_weather",
        description: "Tells the weather.",
        input_schema: { type: "object", properties: { city: { type: "string" } } },
        run: ({ city }) => `sunny in ${city}`,
        parse: (input) => input,
      },
    ],
    ...(thread === undefined ? {} : { thread }),
  });
  const last = await runner.runUntilDone();
  assert.equal(last.stop_reason, "end_turn");
  assert.equal(last.content.find((block) => block.type === "code_execution_tool_result").content.stdout, "43\n");
}

// A program calls the tool.
const asked = [];
const priced = client.beta.messages.toolRunner({
  ...usual,
  messages: user("asks price by price"),
  tools: [
    ...tools,
    {
      name: "get_price",
      description: "Tells a price.",
      input_schema: { type: "object", properties: { item: { type: "string" } } },
      allowed_callers: ["code_execution_20260120"],
      run: ({ item }) => (asked.push(item), "2"),
      parse: (input) => input,
    },
  ],
});
assert.equal((await priced.runUntilDone()).content.at(-1).text, "All is still 6.");
assert.deepEqual(asked, ["tea", "milk", "rice"]);

await assert.rejects(client.files.retrieveMetadata("file-none"), Anthropic.NotFoundError);
await assert.rejects(client.messages.create({ ...usual, model: "none", messages: user("x") }), Anthropic.NotFoundError);
console.log("ok");
