// Two questions by Vercel's AI SDK in three protocols, the second one in a stream, and one with a function of its own between two programs.
// Prints the answers as JSON.
//   node vercel.mjs URL
import { createAnthropic } from "@ai-sdk/anthropic";
import { createGoogleGenerativeAI } from "@ai-sdk/google";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const url = process.argv[2];
const told = {};
const ask = async (name, model, tools, options = () => undefined) => {
  const messages = [{ role: "user", content: "set y" }];
  const first = await generateText({ model, messages, tools });
  messages.push(...first.response.messages, { role: "user", content: "get y" });
  const stream = streamText({ model, messages, tools, providerOptions: options(first) });
  let text = "";
  for await (const part of stream.fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") text += part.text;
  }
  told[name] = [first.text, text];
};

const openai = createOpenAI({ baseURL: url + "/v1", apiKey: "unused" });
await ask("openai", openai.responses("gpt-5"), { code_interpreter: openai.tools.codeInterpreter() });
const anthropic = createAnthropic({ baseURL: url + "/v1", apiKey: "unused" });
await ask("anthropic", anthropic("gpt-5"), { code_execution: anthropic.tools.codeExecution_20250825() }, (first) => ({
  anthropic: { container: { id: first.providerMetadata.anthropic.container.id } },
}));
const google = createGoogleGenerativeAI({ baseURL: url + "/v1beta", apiKey: "unused" });
await ask("google", google("gemini-2.5"), { code_execution: google.tools.codeExecution({}) });

const get_weather = tool({ inputSchema: jsonSchema({ type: "object", properties: {} }), execute: () => "sunny" });
const code_execution = google.tools.codeExecution({});
for (const [name, model] of Object.entries({ google: google("gemini-2.5"), interactions: google.interactions("gemini-2.5") })) {
  const tools = { code_execution, get_weather };
  const answer = await generateText({ model, prompt: "runs and asks", tools, stopWhen: stepCountIs(5) });
  told[name + " with a function"] = answer.text;
}
console.log(JSON.stringify(told));
