// Every kind of answer by Google's Node client, whole and as a stream. Prints what the parts add up to as JSON.
//   node streams.mjs URL MODEL QUESTIONS
import { GoogleGenAI } from "@google/genai";

const [baseUrl, model, questions] = process.argv.slice(2);
const client = new GoogleGenAI({ apiKey: "any", httpOptions: { baseUrl } });
const weather = { name: "get_weather", parametersJsonSchema: { type: "object", properties: { city: { type: "string" } } } };
const config = { tools: [{ codeExecution: {} }, { functionDeclarations: [weather] }], thinkingConfig: { includeThoughts: true } };

const add = (told, answer) => {
  const [candidate] = answer.candidates ?? [];
  for (const part of candidate?.content?.parts ?? []) {
    const kind = part.thought ? "thought" : ["text", "executableCode", "codeExecutionResult", "inlineData", "functionCall"].find((name) => part[name] !== undefined);
    const content = { text: part.text, executableCode: part.executableCode?.code, codeExecutionResult: part.codeExecutionResult?.outcome, inlineData: part.inlineData?.mimeType, functionCall: part.functionCall?.name }[kind === "thought" ? "text" : kind];
    const last = told.at(-1);
    if (last?.[0] === kind && (kind === "text" || kind === "thought")) last[1] += content;
    else told.push([kind, content]);
  }
  if (candidate?.finishReason) told.push(["end", candidate.finishReason]);
};
const answer = async (ask) => {
  const told = [];
  try {
    await ask(told);
  } catch (error) {
    told.push(["error", JSON.parse(error.message).error.code]);
  }
  return told;
};
const seen = {};
for (const contents of JSON.parse(questions)) {
  const whole = await answer(async (told) => add(told, await client.models.generateContent({ model, contents, config })));
  const stream = await answer(async (told) => {
    for await (const frame of await client.models.generateContentStream({ model, contents, config })) add(told, frame);
  });
  seen[contents] = [whole, stream];
}

// Chats that are streamed remember what was said and keep their variables.
const chat = client.chats.create({ model, config: { tools: [{ codeExecution: {} }] } });
const says = async (message) => {
  let text = "";
  for await (const frame of await chat.sendMessageStream({ message })) text += frame.text ?? "";
  return text;
};
await says("set y");
const kept = [await says("get y"), chat.getHistory(true).filter((content) => content.role === "user").length];
console.log(JSON.stringify({ seen, kept }));
