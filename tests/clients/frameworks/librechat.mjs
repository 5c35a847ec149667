// Questions by the agents of LibreChat, which stream. Prints the answers as JSON.
//   node librechat.mjs URL
import { AIMessage, HumanMessage } from "@langchain/core/messages";
import { ChatModelStreamHandler, createContentAggregator, GraphEvents, Providers, Run } from "@librechat/agents";

const configuration = { baseURL: process.argv[2] + "/v1" };
const { aggregateContent } = createContentAggregator();
let pieces = 0;
const customHandlers = {
  [GraphEvents.CHAT_MODEL_STREAM]: new ChatModelStreamHandler(),
  [GraphEvents.ON_RUN_STEP]: { handle: (event, data) => aggregateContent({ event, data }) },
  [GraphEvents.ON_MESSAGE_DELTA]: {
    handle: (event, data) => {
      pieces += 1;
      aggregateContent({ event, data });
    },
  },
};
const ask = async (messages, runId) => {
  const llmConfig = { provider: Providers.OPENAI, model: "analyst", apiKey: "unused", streaming: true, configuration };
  const run = await Run.create({ runId, graphConfig: { type: "standard", llmConfig }, returnContent: true, customHandlers });
  const options = { version: "v2", runId, configurable: { thread_id: "1" }, streamMode: "values" };
  return (await run.processStream({ messages }, options)).map((part) => part.text ?? "").join("");
};

const first = await ask([new HumanMessage("set y")], "1");
const second = await ask([new HumanMessage("set y"), new AIMessage(first), new HumanMessage("get y")], "2");
const third = await ask([new HumanMessage("a chart")], "3");
console.log(JSON.stringify({ first, second, third, pieces }));
