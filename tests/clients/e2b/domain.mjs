// The official Node client, unchanged, that knows E2B_DOMAIN alone.
import assert from "node:assert/strict";
import dns from "node:dns";
import { Sandbox } from "@e2b/code-interpreter";

// A resolver that knows the domain.
const domain = process.env.E2B_DOMAIN.split(":")[0];
const usual = dns.lookup;
dns.lookup = (host, ...rest) => usual(host.endsWith(`.${domain}`) ? "127.0.0.1" : host, ...rest);

const page = async (address) => {
  for (let tries = 0; tries < 100; tries += 1) {
    const answer = await fetch(address);
    if (answer.status !== 502) return await answer.text();
    await new Promise((done) => setTimeout(done, 100));
  }
  throw new Error(`nobody answers at ${address}`);
};

const sandbox = await Sandbox.create({ timeoutMs: 60_000 });
assert.equal((await sandbox.runCode("x = 1; x + 1")).text, "2");
await sandbox.files.write("a/b.txt", "content");
assert.equal(await sandbox.files.read("a/b.txt"), "content");
assert.equal((await sandbox.commands.run("cat a/b.txt")).stdout, "content");
await sandbox.commands.run("python3 -m http.server 8000 --directory a", { background: true });
assert.equal(await page(`https://${sandbox.getHost(8000)}/b.txt`), "content");
assert.equal(await page(await sandbox.downloadUrl("a/b.txt", { user: "user" })), "content");
const again = await Sandbox.connect(sandbox.sandboxId);
assert.equal((await again.runCode("x")).text, "1");
assert.equal(await sandbox.kill(), true);
assert.equal(await again.isRunning(), false);
process.exit(0);
