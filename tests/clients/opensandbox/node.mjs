// The official JavaScript client, unchanged.
import assert from "node:assert/strict";
import { ConnectionConfig, Sandbox, SandboxApiException, SandboxManager } from "@alibaba-group/opensandbox";

const [domain] = process.argv.slice(2);
const headers = { "X-Request-ID": "chosen-by-the-client" };
const connectionConfig = new ConnectionConfig({ domain, apiKey: "unused", headers });
const options = { connectionConfig, image: "opensandbox/code-interpreter:v1.1.0", timeoutSeconds: 120 };
const sandbox = await Sandbox.create({ ...options, metadata: { client: "node" }, env: { A: "sandbox" } });

// Lifecycle.
assert.equal(await sandbox.isHealthy(), true);
const info = await sandbox.getInfo();
assert.deepEqual([info.id, info.status.state, info.metadata], [sandbox.id, "Running", { client: "node" }]);
const renewed = await sandbox.renew(600);
assert.ok(new Date(renewed.expiresAt) > info.expiresAt);
assert.deepEqual((await sandbox.patchMetadata({ more: "1" })).metadata, { client: "node", more: "1" });
assert.ok((await sandbox.getMetrics()).memoryTotalMiB > 0);
assert.equal((await sandbox.getEgressPolicy()).defaultAction, "deny");

// Commands.
const ran = await sandbox.commands.run("echo out; echo $A $B; echo err >&2; pwd", { envs: { B: "command" }, workingDirectory: "/tmp" });
const text = (lines) => lines.map((line) => line.text).join("");
assert.deepEqual(
  [text(ran.logs.stdout).replaceAll("\n", ""), text(ran.logs.stderr).trim(), ran.exitCode],
  ["outsandbox command/tmp", "err", 0],
);
assert.equal((await sandbox.commands.run("exit 3")).exitCode, 3);
const streamed = [];
for await (const event of sandbox.commands.runStream("echo one; sleep 0.1; echo two")) streamed.push(event.type);
assert.ok(streamed.includes("stdout") && streamed.at(-1) === "execution_complete", streamed.join());
const background = await sandbox.commands.run("echo first; exec sleep 60", { background: true });
let logs = "";
for (let tries = 0; logs === "" && tries < 50; tries += 1) {
  logs = (await sandbox.commands.getBackgroundCommandLogs(background.id, 0)).content;
  await new Promise((done) => setTimeout(done, 50));
}
assert.equal(logs.trim(), "first");
assert.equal((await sandbox.commands.getCommandStatus(background.id)).running, true);
await sandbox.commands.interrupt(background.id);
let running = true;
for (let tries = 0; running && tries < 50; tries += 1) {
  ({ running } = await sandbox.commands.getCommandStatus(background.id));
  await new Promise((done) => setTimeout(done, 50));
}
assert.equal(running, false);

// A shell that remembers.
const session = await sandbox.commands.createSession({ workingDirectory: "/tmp" });
await sandbox.commands.runInSession(session, "export KEPT=1; mkdir -p deep && cd deep");
assert.equal(text((await sandbox.commands.runInSession(session, "echo $KEPT $PWD")).logs.stdout).trim(), "1 /tmp/deep");
await sandbox.commands.deleteSession(session);
await assert.rejects(sandbox.commands.runInSession(session, "true"), SandboxApiException);

// Files.
const { files } = sandbox;
await files.createDirectories([{ path: "/tmp/d/e", mode: 755 }]);
await files.writeFiles([{ path: "/tmp/d/a.txt", data: "hello é", mode: 644 }, { path: "/tmp/d/e/b.bin", data: new Uint8Array([0, 1, 2, 255]) }]);
assert.equal(await files.readFile("/tmp/d/a.txt"), "hello é");
assert.equal(await files.readFile("/tmp/d/a.txt", { range: "bytes=1-3" }), "ell");
assert.deepEqual([...(await files.readBytes("/tmp/d/e/b.bin"))], [0, 1, 2, 255]);
const pieces = [];
for await (const piece of files.readBytesStream("/tmp/d/e/b.bin")) pieces.push(...piece);
assert.deepEqual(pieces, [0, 1, 2, 255]);
assert.deepEqual([(await files.getFileInfo(["/tmp/d/a.txt"]))["/tmp/d/a.txt"].size], [8]);
assert.deepEqual((await files.search({ path: "/tmp/d", pattern: "*.bin" })).map((found) => found.path), ["/tmp/d/e/b.bin"]);
assert.deepEqual((await files.listDirectory({ path: "/tmp/d" })).map((found) => found.path).sort(), ["/tmp/d/a.txt", "/tmp/d/e"]);
await files.replaceContents([{ path: "/tmp/d/a.txt", oldContent: "hello", newContent: "bye" }]);
const replaced = await files.replaceContentsDetailed([{ path: "/tmp/d/a.txt", oldContent: "bye", newContent: "by" }]);
assert.deepEqual([replaced[0].replacedCount, await files.readFile("/tmp/d/a.txt")], [1, "by é"]);
await files.setPermissions([{ path: "/tmp/d/a.txt", mode: 600 }]);
assert.equal((await files.getFileInfo(["/tmp/d/a.txt"]))["/tmp/d/a.txt"].mode, 600);
await files.moveFiles([{ src: "/tmp/d/a.txt", dest: "/tmp/d/moved.txt" }]);
await files.deleteFiles(["/tmp/d/moved.txt"]);
await files.deleteDirectories(["/tmp/d"]);
await assert.rejects(files.readFile("/tmp/d/moved.txt"), (error) => error.statusCode === 404);

// A server in the sandbox.
await sandbox.commands.run("echo page > /tmp/index.html && cd /tmp && exec python3 -m http.server 8000", { background: true });
const page = await sandbox.getEndpoint(8000);
let shown = "";
for (let tries = 0; shown === "" && tries < 50; tries += 1) {
  const answer = await fetch(`http://${page.endpoint}/index.html`, { headers: page.headers });
  shown = answer.ok ? await answer.text() : "";
  await new Promise((done) => setTimeout(done, 50));
}
assert.equal(shown, "page\n");

// Pause, resume, lists, ends.
const manager = SandboxManager.create({ connectionConfig });
const listed = await manager.listSandboxInfos({ metadata: { client: "node" }, states: ["Running"] });
assert.deepEqual(listed.items.map((one) => one.id), [sandbox.id]);
await sandbox.pause();
assert.equal((await manager.getSandboxInfo(sandbox.id)).status.state, "Paused");
const resumed = await sandbox.resume();
assert.equal((await resumed.commands.run("cat /tmp/index.html")).exitCode, 0);
const again = await Sandbox.connect({ sandboxId: sandbox.id, connectionConfig });
assert.equal((await again.commands.run("true")).exitCode, 0);
await sandbox.kill();
await assert.rejects(Sandbox.connect({ sandboxId: sandbox.id, connectionConfig }), (error) => {
  assert.equal(error.requestId, headers["X-Request-ID"]);
  return error instanceof SandboxApiException && error.statusCode === 404;
});
process.exit(0);
