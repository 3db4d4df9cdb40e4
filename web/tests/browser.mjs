// Tests the page in Chromium: node browser.mjs FOLDER GCODEC ROOT [PICTURE]
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { write, writeLarge } from "./files.mjs";

const [folder, gcodec, root, picture] = process.argv.slice(2);
const work = mkdtempSync(join(tmpdir(), "gcodec-web-"));
const FIXTURES = join(root, "tools/cli/fixtures");
for (const from of [FIXTURES, join(root, "web/tests/fixtures")]) cpSync(from, work, { recursive: true });
write(work, (args) => execFileSync(gcodec, ["-q", ...args], { cwd: work, stdio: ["ignore", "ignore", "inherit"] }));

/** Runs the command line; returns its output, also after a failure. */
const run = (...args) => spawnSync(gcodec, args, { cwd: work, encoding: "utf8", maxBuffer: 1 << 28 });

const browser = await chromium.launch({
  executablePath: "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const problems = [];
const context = await browser.newContext({ viewport: { width: 1240, height: 900 } });
// Whatever the page would load but itself is a mistake.
context.on("request", (request) => {
  const isOwn = /^(blob|data):/.test(request.url()) || request.url().startsWith(`file://${folder}/index.html`) || request.url() === "about:srcdoc";
  if (!isOwn) problems.push(`request of ${request.url()}`);
});
const page = await context.newPage();
page.on("console", (message) => problems.push(`console: ${message.text()}`));
page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
await page.goto(`file://${folder}/index.html`);

const idle = () =>
  page.waitForFunction(() => document.querySelector("#work").hidden && (!document.querySelector("#shown").hidden || !document.querySelector("#error").hidden), null, { timeout: 120_000 });
async function open(...names) {
  await page.evaluate(() => { document.querySelector("#shown").hidden = true; document.querySelector("#error").hidden = true; });
  await page.setInputFiles("#files", names.map((name) => join(work, name)));
  await idle();
}
const text = (selector) => page.$eval(selector, (element) => (element.hidden ? "" : element.innerText));
const json = () => page.evaluate(() => state.json);

let passed = 0;
async function check(name, test) {
  try {
    await test();
    passed += 1;
  } catch (error) {
    problems.push(`${name}: ${error.stack}`);
  }
}

// Every kind of file: what the page shows is what the command line prints, to the last digit.
const KINDS = [
  ["state.pt"], ["odd.pt"], ["object.npy"], ["big_endian_fortran.npy"], ["stored.npz"], ["compressed.npz"], ["chunks.safetensors"], ["nan.safetensors"],
  ["model.gguf"], ["legacy.pt"], ["run.gcu"], ["damaged.gcu"], ["step1.safetensors", "step2.safetensors", "step3.safetensors"],
];
for (const names of KINDS) {
  await check(names.join(" "), async () => {
    await open(...names);
    assert.equal(await text("#error"), "");
    const printed = run("inspect", ...names, "--json").stdout;
    assert.equal(await json(), printed);
    assert.ok((await page.$$("#table tbody tr")).length > 0);
  });
}

await check("the NaN of a file, of shards", async () => {
  await open("nan.safetensors");
  assert.match(await text("#facts"), /NaN\s+1/);
  await page.check("#odd");
  assert.deepEqual(await page.$$eval("#table tbody tr", (rows) => rows.map((row) => row.cells[0].innerText)), ["layer.0.weight"]);
  assert.match(await text("#table tbody"), /\[43, 21\]/);
  await page.uncheck("#odd");
  await page.setInputFiles("#tree", join(work, "sharded"));
  await idle();
  assert.match(await text("#advice"), /block\.2\.weight/);
  assert.deepEqual(JSON.parse(await json()).updates, JSON.parse(run("inspect", "sharded/model.safetensors.index.json", "--json").stdout).updates);
});

await check("shards that are compressed", async () => {
  await page.setInputFiles("#tree", join(work, "compressed"));
  await idle();
  assert.match(await text("#facts"), /sharded safetensors[^]*NaN\s+1/);
  assert.deepEqual(JSON.parse(await json()).updates, JSON.parse(run("inspect", "compressed", "--json").stdout).updates);
});

await check("what is dropped from the disk", async () => {
  // As the browser gives it, unlike the files of an input: a page of a disk may read less of it.
  const devtools = await context.newCDPSession(page);
  for (const [name, advice] of [["nan.safetensors", /layer\.0\.weight\[43, 21\]/], ["sharded", /block\.2\.weight\[2, 17\]/]]) {
    await page.evaluate(() => { document.querySelector("#shown").hidden = true; document.querySelector("#error").hidden = true; });
    const data = { items: [], files: [join(work, name)], dragOperationsMask: 1 };
    for (const type of ["dragEnter", "dragOver", "drop"]) await devtools.send("Input.dispatchDragEvent", { type, x: 300, y: 100, data });
    await idle();
    assert.equal(await text("#error"), "");
    assert.match(await text("#advice"), advice);
    assert.equal(await page.$eval("body", (body) => body.classList.contains("over")), false);
  }
  await devtools.detach();
});

await check("a distributed checkpoint", async () => {
  await page.setInputFiles("#tree", join(work, "checkpoint"));
  await idle();
  assert.match(await text("#facts"), /NaN\s+1/);
  assert.deepEqual(JSON.parse(await json()).updates, JSON.parse(run("inspect", "checkpoint", "--json").stdout).updates);
});

await check("damaged and hostile files", async () => {
  for (const name of ["cut.pt", "damaged.npz", "hostile.safetensors", "pickle.pkl", "README.md"]) {
    await open(name);
    const { stderr } = run("inspect", name, "--json");
    assert.equal(`error: ${await text("#error")}`, stderr.trim().split("\n").pop());
  }
  // Pickles within pickles, deeper than any stack.
  for (const name of ["deep.pt", "deep.safetensors"]) {
    await open(name);
    assert.notEqual(await text("#error"), "");
    assert.doesNotMatch(await text("#error"), /bug/);
  }
  await open("damaged.gcu");
  assert.match(await text("#facts"), /1 fault\b/);
  const said = (await text("#advice")).split("\n");
  assert.equal(said.filter((line) => line.includes("wrong checksum")).length, 1, said.join("; "));
  await open("state.pt");
  assert.equal(await text("#error"), "");
});

await check("one tensor", async () => {
  await open("nan.safetensors");
  await page.click("#table tbody button");
  await page.waitForSelector("#detail svg");
  await page.waitForSelector("#detail canvas");
  assert.match(await text("#detail"), /1, first at \[43, 21\]/);
});

await check("sorting and filtering", async () => {
  await open("odd.pt");
  await page.click("#table thead button:text-is('norm')");
  const norms = await page.$$eval("#table tbody tr", (rows) => rows.map((row) => Number(row.cells[4].innerText)).filter((x) => !Number.isNaN(x)));
  assert.deepEqual(norms, [...norms].sort((a, b) => b - a));
  await page.fill("#filter", "module.0");
  assert.match(await text("#count"), /^2 of /);
  await page.fill("#filter", "");
});

await check("by keyboard alone", async () => {
  await open("nan.safetensors");
  await page.focus("#tab-tensors");
  await page.keyboard.press("Tab");
  await page.keyboard.type("weight");
  assert.match(await text("#count"), /^1 of 2/);
  let label = "";
  for (let i = 0; i < 30 && !label.startsWith("layer.0.weight"); i += 1) {
    await page.keyboard.press("Tab");
    label = await page.evaluate(() => document.activeElement.innerText ?? "");
  }
  await page.keyboard.press("Enter");
  await page.waitForSelector("#detail svg");
  await page.keyboard.press("Escape");
  assert.equal(await text("#detail"), "");
  assert.equal(await page.evaluate(() => document.activeElement.innerText), "layer.0.weight");
  await page.focus("#tab-tensors");
  await page.keyboard.press("ArrowRight");
  assert.equal(await page.$eval("#tab-compare", (tab) => tab.getAttribute("aria-selected")), "true");
  await page.keyboard.press("ArrowLeft");
  await page.fill("#filter", "");
});

await check("two files", async () => {
  await open("step2.safetensors");
  await page.setInputFiles("#reference", [join(work, "step1.safetensors")]);
  await page.waitForFunction(() => document.querySelector("#verdict").innerText !== "");
  const { total, tensors } = JSON.parse(run("diff", "step1.safetensors", "step2.safetensors", "--json").stdout);
  assert.match(await text("#verdict"), new RegExp(`relative L2 ${total.relative_l2.toPrecision(4)}`));
  assert.equal((await page.$$("#differences tbody tr")).length, tensors.length);
  await open("run.gcu");
  await page.setInputFiles("#reference", [1, 2, 3].map((step) => join(work, `step${step}.safetensors`)));
  await page.waitForFunction(() => document.querySelector("#verdict").innerText.includes("energy"));
  await open("step3.safetensors");
  await page.setInputFiles("#reference", [join(work, "step3.safetensors")]);
  await page.waitForFunction(() => document.querySelector("#verdict").innerText.startsWith("Equal"));
  // Without a name in common there is no loss, but the report.
  await page.setInputFiles("#reference", [join(work, "nan.safetensors")]);
  await page.waitForFunction(() => document.querySelector("#verdict").innerText.startsWith("No tensor of step3.safetensors"));
  await page.click("#tab-report");
  await page.waitForFunction(() => document.querySelector("#frame").srcdoc.length > 1000);
  assert.equal(await text("#error"), "");
  await page.click("#tab-tensors");
});

await check("the report of HTML", async () => {
  await open("run.gcu");
  await page.click("#tab-report");
  await page.waitForFunction(() => document.querySelector("#frame").srcdoc.length > 1000);
  run("inspect", "run.gcu", "--html", "report.html");
  assert.equal(await page.$eval("#frame", (frame) => frame.srcdoc), readFileSync(join(work, "report.html"), "utf8"));
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("#save-html")]);
  assert.equal(download.suggestedFilename(), "run.gcu.html");
  await page.click("#tab-tensors");
});

await check("another file while one is read", async () => {
  writeLarge(join(work, "large.safetensors"));
  await page.setInputFiles("#files", join(work, "large.safetensors"));
  await page.waitForSelector("#table tbody tr:nth-child(2)");
  const start = Date.now();
  await open("state.pt");
  assert.ok(Date.now() - start < 10_000);
  assert.match(await text("#title"), /state\.pt/);
});

await check("more than 4 GB, by ranges", async () => {
  const path = join(work, "large.safetensors");
  const bytes = writeLarge(path);
  assert.ok(bytes > 2 ** 32);
  const start = Date.now();
  await page.setInputFiles("#files", path);
  await page.waitForSelector("#table tbody tr:nth-child(2)");
  const listed = Date.now() - start;
  await page.waitForFunction(() => document.querySelector("#facts").innerText.includes("whole"), null, { timeout: 240_000 });
  console.log(`${bytes} bytes: listed after ${listed} ms, read after ${Date.now() - start} ms`);
  assert.ok(listed < 5000, `listed after ${listed} ms`);
  assert.match(await text("#table tbody"), /\[1023, 0\]/);
  assert.match(await text("#facts"), /NaN\s+1/);
  rmSync(path);
});

await check("narrow, and dark", async () => {
  await open("nan.safetensors");
  await page.setViewportSize({ width: 360, height: 740 });
  assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 360);
  // The place of the NaN is in sight.
  await page.waitForFunction(() => [...document.querySelectorAll("#table td.bad")].every((cell) => cell.getBoundingClientRect().right <= 360));
  await page.screenshot({ path: join(folder, "narrow.png") });
  await page.setViewportSize({ width: 1240, height: 900 });
  await page.emulateMedia({ colorScheme: "dark" });
  const colour = await page.$eval("body", (body) => getComputedStyle(body).backgroundColor);
  assert.equal(colour, "rgb(20, 23, 27)");
  await page.click("#table tbody button");
  await page.waitForSelector("#detail svg");
  await page.screenshot({ path: join(folder, "dark.png") });
  await page.emulateMedia({ colorScheme: "light" });
});

await check("the picture", async () => {
  // A real gradient, with one NaN.
  const name = "digits_convnet_step0030_worker0.safetensors";
  const bytes = readFileSync(join(root, "tools/cli/gradients", name));
  bytes.writeFloatLE(NaN, bytes.length - 4 * 1000);
  writeFileSync(join(work, name), bytes);
  await page.setViewportSize({ width: 1000, height: 760 });
  await open(name);
  await page.click("#table tbody button");
  await page.waitForSelector("#detail canvas");
  await page.evaluate(() => scrollTo(0, 0));
  await page.screenshot({ path: picture ?? join(folder, "page.png") });
});

await browser.close();
rmSync(work, { recursive: true });
problems.forEach((problem) => console.error(problem));
console.log(`page: ${passed} checks passed, ${problems.length} problems`);
process.exit(problems.length === 0 ? 0 : 1);
