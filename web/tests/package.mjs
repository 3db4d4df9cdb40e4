// Tests the package as `npm pack` makes it, in an empty folder: in node, and in a browser.
// node package.mjs FOLDER GCODEC ROOT
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { cpSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";
import { safetensors, wave, write } from "./files.mjs";

const [folder, gcodec, root] = process.argv.slice(2);
const work = mkdtempSync(join(tmpdir(), "gcodec-npm-"));
const FIXTURES = join(root, "tools/cli/fixtures");
cpSync(FIXTURES, work, { recursive: true });
write(work, (args) => execFileSync(gcodec, ["-q", ...args], { cwd: work, stdio: ["ignore", "ignore", "inherit"] }));
const inspected = (...args) => JSON.parse(spawnSync(gcodec, ["inspect", ...args, "--json"], { cwd: work, encoding: "utf8" }).stdout);

// As a user gets it.
const empty = mkdtempSync(join(tmpdir(), "gcodec-use-"));
const npm = (...args) => execFileSync("npm", [...args, "--silent", "--no-audit", "--no-fund"], { cwd: empty, encoding: "utf8" });
const packed = npm("pack", join(folder, "npm")).trim().split("\n").pop();
writeFileSync(join(empty, "package.json"), '{"private": true, "type": "module"}');
npm("install", `./${packed}`);
const { open, GcodecError } = await import(pathToFileURL(join(empty, "node_modules/gcodec/index.mjs")));

// Its types.
cpSync(join(folder, "tools/use.ts"), join(empty, "use.ts"));
execFileSync("node", [join(folder, "tools/node_modules/typescript/bin/tsc"), "--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom", "use.ts"], { cwd: empty, stdio: "inherit" });

// A server of the files, with ranges and a count of the bytes it sent.
let sent = 0;
const server = createServer((request, answer) => {
  const name = decodeURIComponent(request.url.slice(1));
  const path = name.startsWith("npm/") ? join(empty, "node_modules/gcodec", name.slice(4)) : join(work, name);
  let bytes;
  try {
    bytes = name === "page" ? Buffer.from("<!DOCTYPE html><title>package</title><link rel=icon href='data:,'>") : readFileSync(path);
  } catch {
    return answer.writeHead(404).end();
  }
  const type = /mjs$/.test(name) ? "text/javascript" : /wasm$/.test(name) ? "application/wasm" : name === "page" ? "text/html" : "application/octet-stream";
  const range = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "");
  if (!range) return answer.writeHead(200, { "content-type": type }).end(bytes);
  const [first, last] = [Number(range[1]), Math.min(Number(range[2]), bytes.length - 1)];
  sent += last - first + 1;
  answer.writeHead(206, { "content-type": type, "content-range": `bytes ${first}-${last}/${bytes.length}` });
  answer.end(bytes.subarray(first, last + 1));
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const url = `http://127.0.0.1:${server.address().port}/`;
const large = [["a", [1 << 20], wave(1 << 20)], ["b", [1 << 20], wave(1 << 20, 3)], ["c", [4], [1, 2, 3, NaN]]];
writeFileSync(join(work, "large.safetensors"), safetensors(large));

try {
  // In node: of a path, of bytes, of a Blob, and of a URL, the same report as the command line's.
  for (const name of ["state.pt", "nan.safetensors", "compressed.npz", "model.gguf", "run.gcu"]) {
    const bytes = readFileSync(join(work, name));
    for (const source of [join(work, name), bytes, new Blob([bytes]), new URL(name, url)]) {
      const file = await open(source, { name });
      assert.deepEqual(JSON.parse((await file.inspect()).json), inspected(name), name);
      file.close();
    }
  }
  // Only what is asked for is fetched.
  sent = 0;
  const remote = await open(new URL("large.safetensors", url));
  assert.deepEqual((await remote.headers()).tensors.map((t) => t.name), ["a", "b", "c"]);
  assert.ok(sent < 1 << 20, `${sent} bytes for headers`);
  assert.equal((await remote.statistics("c")).first_nan, 3);
  assert.ok(sent < 2 << 20, `${sent} bytes for a small tensor`);
  const [local] = inspected("large.safetensors").updates[0].tensors.filter((t) => t.name === "b");
  assert.deepEqual(await remote.statistics("b"), local);
  const narrow = await open(new URL("large.safetensors", url), { cacheBytes: 1 << 20 });
  await assert.rejects(narrow.inspect(), (error) => error instanceof GcodecError && error.code === "limit");
  // Tensors, of a file and of a stream.
  assert.deepEqual([...(await remote.tensor("c")).data].map(String), ["1", "2", "3", "NaN"]);
  const stream = await open(join(work, "run.gcu"));
  const { updates } = await stream.headers();
  assert.deepEqual(updates.map((update) => update.step), [1, 2, 3]);
  execFileSync(gcodec, ["-q", "decode", "run.gcu", "-o", "decoded.safetensors", "--step", "2"], { cwd: work });
  const decoded = await open(join(work, "decoded.safetensors"));
  assert.deepEqual(await stream.tensor("w", { update: 1 }), await decoded.tensor("w"));
  const half = await (await open(join(work, "state.pt"))).tensor("model.half");
  assert.deepEqual([...half.toFloat32()], [0.5, 1.5, 2.5, 3.5]);
  // Two files; shards; errors.
  const steps = await open({ "a.safetensors": join(work, "step1.safetensors"), "b.safetensors": join(work, "step2.safetensors") });
  const printed = spawnSync(gcodec, ["diff", "step1.safetensors", "step2.safetensors", "--json"], { cwd: work, encoding: "utf8" }).stdout;
  assert.deepEqual(await steps.diff("a.safetensors", "b.safetensors"), JSON.parse(printed));
  const names = readdirSync(join(work, "sharded"));
  const shards = await open(Object.fromEntries(names.map((name) => [name, join(work, "sharded", name)])));
  assert.deepEqual(shards.paths, ["model.safetensors.index.json"]);
  assert.equal((await shards.statistics("block.2.weight")).nan, 1);
  await assert.rejects(open(new Uint8Array([0x80, 4, 0x95])).then((file) => file.inspect()), (error) => error.code === "invalid" && /pickle/.test(error.message));
  await assert.rejects(shards.tensor("missing"), (error) => error.code === "usage");
  await assert.rejects(open(join(work, "missing.pt")), (error) => error instanceof GcodecError && error.code === "io");
  // The licences are part of it.
  assert.ok(["LICENSE-MIT", "LICENSE-APACHE"].every((name) => readdirSync(join(empty, "node_modules/gcodec")).includes(name)));

  // In a browser, without a bundler.
  const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"] });
  const page = await browser.newPage();
  await page.goto(`${url}page`);
  const found = await page.evaluate(async () => {
    const { open } = await import("/npm/index.mjs");
    const remote = await open("/nan.safetensors");
    const blob = await (await fetch("/run.gcu")).blob();
    const stream = await open(blob, { name: "run.gcu" });
    return { statistics: await remote.statistics("layer.0.weight"), json: (await stream.inspect()).json, data: [...(await remote.tensor("layer.0.bias")).data.slice(0, 3)] };
  });
  assert.deepEqual(found.statistics, inspected("nan.safetensors").updates[0].tensors.find((t) => t.name === "layer.0.weight"));
  assert.deepEqual(JSON.parse(found.json), inspected("run.gcu"));
  assert.equal(found.data.length, 3);
  await browser.close();
  console.log("package: passed in node and in a browser");
} finally {
  server.close();
  [work, empty].forEach((path) => rmSync(path, { recursive: true }));
}
