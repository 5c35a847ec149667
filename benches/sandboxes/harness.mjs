// Time until a sandbox is of use, as the public comparison of sandboxes takes it: ComputeSDK's own client, unchanged, makes one and runs a first command.
//   node harness.mjs sequential 100 | burst 100 | churn 1000 32
import { e2b } from "@computesdk/e2b";

const compute = e2b({ apiKey: process.env.E2B_API_KEY });
const [mode, count, width] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4] ?? 1)];

/** One sandbox: milliseconds until its first command has run. */
async function one() {
  const start = performance.now();
  const sandbox = await compute.sandbox.create({ timeout: 120_000 });
  const result = await sandbox.runCommand("echo ready");
  const took = performance.now() - start;
  if (result.exitCode !== 0 || result.stdout.trim() !== "ready") throw new Error(JSON.stringify(result));
  return { took, end: () => sandbox.getInstance().kill() };
}

const times = [], failures = [];
async function counted(ends) {
  try {
    const { took, end } = await one();
    times.push(took);
    if (ends) await end();
    return end;
  } catch (error) {
    failures.push(String(error));
  }
}

await (await one()).end(); // connections are made
const start = performance.now();
if (mode === "burst") {
  const ends = await Promise.all(Array.from({ length: count }, () => counted(false)));
  await Promise.all(ends.map((end) => end?.()));
} else {
  let left = count;
  const worker = async () => { while (left-- > 0) await counted(true); };
  await Promise.all(Array.from({ length: mode === "churn" ? width : 1 }, worker));
}
const sorted = times.sort((a, b) => a - b);
const at = (part) => Number(sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))]?.toFixed(1));
const seconds = Number(((performance.now() - start) / 1000).toFixed(2));
console.log(JSON.stringify({ mode, count, seconds, failed: failures.length, median: at(0.5), p95: at(0.95), p99: at(0.99), most: at(1) }));
if (failures.length) console.log(failures.slice(0, 3));
