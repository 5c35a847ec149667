// A server that makes nothing and has the answers ready: the time that ComputeSDK's client takes by itself.
//   node floor.mjs PORT
import http from "node:http";

const sandbox = { templateID: "base", sandboxID: "i0", clientID: "0", envdVersion: "0.5.5", envdAccessToken: "ea_0", domain: null };
const frame = (flags, message) => {
  const text = Buffer.from(JSON.stringify(message));
  const head = Buffer.alloc(5);
  head[0] = flags;
  head.writeUInt32BE(text.length, 1);
  return Buffer.concat([head, text]);
};
const command = Buffer.concat([
  frame(0, { event: { start: { pid: 1 } } }),
  frame(0, { event: { data: { stdout: Buffer.from("ready\n").toString("base64") } } }),
  frame(0, { event: { end: { exitCode: 0, exited: true, status: "exit status 0" } } }),
  frame(2, {}),
]);

http.createServer((request, response) => {
  request.resume().on("end", () => {
    if (request.url.startsWith("/process.Process/")) {
      response.writeHead(200, { "content-type": "application/connect+json" }).end(command);
    } else if (request.method === "DELETE") {
      response.writeHead(204).end();
    } else {
      response.writeHead(201, { "content-type": "application/json" }).end(JSON.stringify(sandbox));
    }
  });
}).listen(Number(process.argv[2]), "127.0.0.1");
