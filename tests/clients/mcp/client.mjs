// One TypeScript client goes through all that the tools can do, and prints what it saw as JSON.
const [name, url, held, unattended] = process.argv.slice(2);

const load = async () => {
  if (name === "first") {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const { ElicitRequestSchema } = await import("@modelcontextprotocol/sdk/types.js");
    return { Client, StreamableHTTPClientTransport, elicit: ElicitRequestSchema, options: {} };
  }
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const options = name === "current-auto" ? { versionNegotiation: { mode: "auto" } } : {};
  return { Client, StreamableHTTPClientTransport, elicit: "elicitation/create", options };
};

const { Client, StreamableHTTPClientTransport, elicit, options } = await load();
const connect = async (address, capabilities = {}) => {
  const client = new Client({ name: "a test", version: "1" }, { capabilities, ...options });
  const open = () => client.connect(new StreamableHTTPClientTransport(new URL(address)));
  return { client, open };
};
const call = (client, tool, given, more) =>
  name === "first"
    ? client.callTool({ name: tool, arguments: given }, undefined, more)
    : client.callTool({ name: tool, arguments: given }, more);

const told = {};
const { client, open } = await connect(url);
await open();
told.tools = (await client.listTools()).tools.map((tool) => tool.name);
const first = await call(client, "python", { code: "x = 41" });
const session = first.structuredContent.session;
told.result = (await call(client, "python", { code: "x + 1", session })).structuredContent.result;
const plot = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nopen('made.csv', 'w').write('a,b')";
const made = await call(client, "python", { code: plot, session });
told.kinds = made.content.map((item) => item.type);
told.file = (await client.readResource({ uri: made.content[2].uri })).contents[0].text;
const failed = await call(client, "python", { code: "1/0", session });
told.failed = [failed.isError, failed.structuredContent.status, failed.structuredContent.error.name];
told.progress = 0;
const slow = "import time\ntime.sleep(2.5)";
const slept = await call(client, "python", { code: slow, session }, { onprogress: () => (told.progress += 1) });
told.status = slept.structuredContent.status;
// The program ends with its call: the same variables are free at once.
const control = new AbortController();
setTimeout(() => control.abort(), 1000);
await call(client, "python", { code: "while True: pass", session }, { signal: control.signal }).catch(() => (told.cancelled = true));
told.free = (await call(client, "python", { code: "x + 1", session })).structuredContent.status;
await client.close();

const again = await connect(url);
await again.open();
told.again = (await call(again.client, "python", { code: "x + 1", session })).structuredContent.result;
await again.client.close();

const silent = await connect(unattended);
await silent.open();
told.unattended = (await call(silent.client, "python", { code: "print('marker')" })).content[0].text;
await silent.client.close();

const asking = await connect(held, { elicitation: { form: {} } });
let asked = 0;
asking.client.setRequestHandler(elicit, async () => ({
  action: "accept",
  content: { decision: asked++ === 0 ? "run once" : "deny" },
}));
await asking.open();
told.approved = (await call(asking.client, "python", { code: "print('marker')" })).content[0].text;
told.refused = (await call(asking.client, "python", { code: "print('marker')" })).content[0].text;
await asking.client.close();
console.log(JSON.stringify(told));
