"use strict";
const $ = (id) => document.getElementById(id);
const kept = JSON.parse($("worker").textContent);
const script = URL.createObjectURL(new Blob([kept], { type: "text/javascript" }));
/** Rows that are shown at once. */
const ROWS = 500;

let asked = 0;
const waiting = new Map();
let total = 0;

function ask(request) {
  return new Promise((resolve, reject) => {
    waiting.set(++asked, { resolve, reject });
    worker.postMessage({ ...request, id: asked });
  });
}

const wasm = Uint8Array.from(atob($("wasm").textContent), (c) => c.charCodeAt(0));
let worker;
let ready;
/** Begins with a new worker. What an old one was asked is not answered any more. */
function start() {
  worker?.terminate();
  waiting.clear();
  worker = new Worker(script);
  worker.onmessage = ({ data }) => {
    if (data.read !== undefined) return progress(data.read);
    const { resolve, reject } = waiting.get(data.id);
    waiting.delete(data.id);
    if (data.error === undefined) return resolve(data);
    reject(Object.assign(new Error(data.error), { warnings: data.warnings }));
  };
  worker.onerror = (event) => fail(new Error(event.message || "this browser cannot run the page's worker"));
  ready = ask({ do: "start", wasm });
  ready.catch((error) => fail(new Error(`this browser cannot run WebAssembly: ${error.message}`)));
}
start();

// Numbers and texts, as `gcodec inspect` prints them.
const count = (n) => (n ?? 0).toLocaleString("en");
function bytes(n) {
  if (n < 1000) return `${n} B`;
  let unit = 0;
  for (n /= 1000; n >= 999.5 && unit < 5; n /= 1000) unit += 1;
  return `${n < 9.995 ? n.toFixed(2) : n < 99.95 ? n.toFixed(1) : n.toFixed(0)} ${["kB", "MB", "GB", "TB", "PB", "EB"][unit]}`;
}
function real(x) {
  if (x === null || x === undefined) return "-";
  if (x === 0) return "0";
  const size = Math.abs(x);
  return size >= 1e-3 && size < 1e5 ? x.toPrecision(4) : x.toExponential(2);
}
function share(x) {
  if (x === null || x === undefined) return "-";
  const p = x * 100;
  return p === 0 || p >= 99.95 ? `${p.toFixed(0)}%` : p >= 0.01 ? `${p.toFixed(p < 9.995 ? 2 : 1)}%` : `${p.toExponential(0)}%`;
}
const shape = (dims) => (dims.length === 0 ? "scalar" : dims.join("×"));
/** Names come from files: characters that do not show what they are, are escaped. */
const plain = (text) =>
  text.replace(/[\p{Cc}\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
function place(index, dims) {
  if (dims.length < 2 || dims.includes(0)) return `[${index}]`;
  const at = [];
  for (const dim of [...dims].reverse()) {
    at.unshift(index % dim);
    index = Math.floor(index / dim);
  }
  return `[${at.join(", ")}]`;
}

function make(tag, attributes = {}, ...inside) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") element.onclick = value;
    else if (value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...inside.filter((x) => x !== undefined && x !== null));
  return element;
}

// What is shown.
let state = empty();
function empty() {
  return { files: [], paths: [], reports: [], rows: [], json: "", sort: "bytes", down: true, shown: ROWS, report: false };
}

function work(what, bytes = 0) {
  total = bytes;
  $("work").hidden = !what;
  $("what").textContent = what;
  $("bar").removeAttribute("value");
}
function progress(read) {
  if (total <= 0) return;
  $("bar").value = Math.min(1, read / total);
}
function fail(error) {
  work("");
  $("error").hidden = false;
  $("error").textContent = plain(error.message);
}

async function open(files) {
  if (files.length === 0) return;
  $("error").hidden = true;
  $("shown").hidden = true;
  state = empty();
  const mine = state;
  mine.files = files;
  // Another file is being read: not any more.
  if (waiting.size > 0 && document.body.classList.contains("used")) start();
  document.body.classList.add("used");
  const size = files.reduce((sum, { file }) => sum + file.size, 0);
  try {
    await ready;
    work(`Opening ${files.length === 1 ? plain(files[0].path) : `${count(files.length)} files`}`);
    const inputs = await ask({ do: "open", files });
    mine.paths = inputs.value;
    let { warnings } = inputs;
    const isStream = (path) => /\.gcu$/i.test(path);
    if (!mine.paths.every(isStream) && size > 64e6) {
      // Headers first: the list is there at once, and the numbers come when they are read.
      const quick = await ask({ do: "report", paths: mine.paths, quick: true });
      if (mine !== state) return;
      show(mine, quick.value, warnings, false);
    }
    work(`Reading ${bytes(size)}`, size);
    const whole = await ask({ do: "report", paths: mine.paths, quick: false });
    if (mine !== state) return;
    warnings = [...new Set([...warnings, ...whole.warnings])];
    show(mine, whole.value, warnings, true);
    work("");
    $("title").focus({ preventScroll: true });
  } catch (error) {
    if (mine === state) fail(error);
  } finally {
    $("drop").classList.add("small");
  }
}

function show(mine, { reports, failures, advice, json }, warnings, isWhole) {
  Object.assign(mine, { reports, json, isWhole });
  mine.rows = [];
  for (const report of reports) {
    report.updates.forEach((update, number) => {
      for (const tensor of update.tensors) {
        const of = reports.length > 1 ? report.file : report.updates.length > 1 ? `step ${update.step}, sender ${update.sender}` : "";
        mine.rows.push({ ...tensor, of, number, bytes: (tensor.position_bits + tensor.value_bits + tensor.overhead_bits) / 8 });
      }
    });
  }
  $("title").textContent = plain(reports.length === 1 ? reports[0].file : `${count(reports.length)} files`);
  document.title = `${$("title").textContent}: gcodec inspect`;
  const updates = reports.flatMap((report) => report.updates.map((update) => ({ ...update, file: report.file })));
  const sum = (of) => updates.reduce((all, update) => all + (of(update) ?? 0), 0);
  const told = reports.flatMap((r) => r.faults.map((f) => fault(f, reports.length > 1 ? r.file : "")));
  // The failure of a file is its first fault, which its report has, too.
  const known = new Set(reports.flatMap((r) => r.faults.map((f) => fault(f, r.file))));
  const others = failures.map((f) => f.message).filter((message) => !known.has(message));
  const faults = told.length + others.length;
  const [nan, infinite] = [sum((u) => u.nan), sum((u) => u.infinite)];
  const norm = Math.sqrt(sum((u) => (u.norm ?? 0) ** 2));
  const unread = isWhole ? undefined : "…";
  const facts = [
    ["Kind", [...new Set(reports.map((r) => r.kind))].join(", ")],
    ["Size", bytes(reports.reduce((all, r) => all + r.bytes, 0))],
    ["Tensors", count(new Set(mine.rows.map((t) => t.name)).size)],
    ["Elements", count(sum((u) => u.elements))],
    updates.length > 1 ? ["Updates", count(updates.length)] : null,
    updates.length === 1 ? ["Norm", unread ?? real(updates[0].norm)] : null,
    ["NaN", unread ?? count(nan), nan > 0],
    ["Inf", unread ?? count(infinite), infinite > 0],
    ["State", faults > 0 ? `${count(faults)} fault${faults === 1 ? "" : "s"}` : isWhole ? "whole" : "reading", faults > 0],
  ];
  $("facts").replaceChildren(
    ...facts.filter(Boolean).map(([name, value, isBad]) => make("div", { class: isBad ? "bad" : undefined }, make("dt", {}, name), make("dd", {}, value))),
  );
  // What is damaged was said.
  const advised = advice.filter((line) => !line.startsWith("damage: ")).map(inPage);
  const isMissing = others.some((line) => line.includes(": the file is missing"));
  const lines = [...others, ...told, ...(isMissing ? ["A page sees only the files that it gets: drop the whole folder, or all of its files."] : []), ...reports.map((r) => r.whole).filter(Boolean), ...advised, ...warnings];
  $("advice").hidden = lines.length === 0;
  $("advice").replaceChildren(...[...new Set(lines)].slice(0, 30).map((line, i) => make("li", { class: i < faults ? "bad" : undefined }, ...withPlaces(line))));
  $("tab-updates").hidden = updates.length < 2;
  list(updates, reports.length > 1);
  $("detail").hidden = true;
  $("verdict").textContent = "";
  $("differences").parentElement.hidden = true;
  mine.report = false;
  $("frame").srcdoc = "";
  $("shown").hidden = false;
  if (!mine.tab) tab("tensors");
  mine.tab ??= "tensors";
  table();
}

/** A line of advice, without the option of the command line that it ends with. */
const inPage = (line) => line.replace(/; see --.*$/, "");
/** Places, such as [3, 7], are not divided at the end of a line. */
const withPlaces = (line) => plain(line).split(/(\[\d[\d, ]*\])/).map((part, i) => (i % 2 === 1 ? make("span", { class: "place" }, part) : part));
const fault = ({ error }, file) => (file ? `${file}: ${error}` : error);

const COLUMNS = [
  ["name", "tensor", (t) => t.name, null],
  ["dtype", "type", (t) => t.dtype, (t) => t.dtype, "text"],
  ["shape", "shape", (t) => t.elements, (t) => (t.opaque && t.shape.length === 0 ? "-" : shape(t.shape)), "text"],
  ["bytes", "bytes", (t) => t.bytes, (t) => bytes(Math.round(t.bytes))],
  ["norm", "norm", (t) => t.norm, (t) => real(t.norm)],
  ["mean", "mean", (t) => t.mean, (t) => real(t.mean)],
  ["std", "std", (t) => t.std, (t) => real(t.std)],
  ["min", "min", (t) => t.min, (t) => real(t.min)],
  ["max", "max", (t) => t.max, (t) => real(t.max)],
  ["zeros", "zero", (t) => (t.zeros ?? 0) / Math.max(1, t.elements), (t) => (t.zeros === null || t.zeros === undefined ? "-" : share(t.zeros / Math.max(1, t.elements)))],
  ["nan", "NaN", (t) => t.nan ?? 0, (t) => (t.nan ? count(t.nan) : t.nan === 0 ? "0" : "-")],
  ["infinite", "Inf", (t) => t.infinite ?? 0, (t) => (t.infinite ? count(t.infinite) : t.infinite === 0 ? "0" : "-")],
  ["first", "first at", (t) => first(t) ?? Infinity, (t) => (first(t) === undefined ? "" : place(first(t), t.shape)), "text"],
];
const first = (t) => [t.first_nan, t.first_infinite].filter((x) => x !== null && x !== undefined).sort((a, b) => a - b)[0];

function chosen() {
  const word = $("filter").value.toLowerCase();
  const isOdd = (t) => t.nan > 0 || t.infinite > 0 || t.error || t.opaque;
  const rows = state.rows.filter((t) => (!word || t.name.toLowerCase().includes(word)) && (!$("odd").checked || isOdd(t)));
  const key = COLUMNS.find(([name]) => name === state.sort)[2];
  const order = state.down ? -1 : 1;
  const value = (t) => key(t) ?? -Infinity;
  return rows.sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    return order * (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y || 0);
  });
}

const classes = (...names) => names.filter(Boolean).join(" ");

function table() {
  const rows = chosen();
  const withOf = state.rows.some((t) => t.of);
  const head = COLUMNS.map(([name, title, , , kind]) =>
    make("th", { scope: "col", class: classes(kind, `c-${name}`), "aria-sort": state.sort === name ? (state.down ? "descending" : "ascending") : undefined },
      make("button", { type: "button", onclick: () => { sortBy(name); } }, title)));
  if (withOf) head.splice(1, 0, make("th", { class: "text", scope: "col" }, "in"));
  const body = rows.slice(0, state.shown).map((t) => {
    const isBad = t.nan > 0 || t.infinite > 0 || t.error;
    const cells = COLUMNS.slice(1).map(([name, , , text, kind]) =>
      make("td", { class: classes(kind, `c-${name}`, isBad && ["nan", "infinite", "first"].includes(name) && (name === "first" || t[name] > 0) && "bad") }, plain(text(t))));
    if (withOf) cells.unshift(make("td", { class: "text" }, plain(t.of)));
    const button = make("button", { type: "button", onclick: () => detail(t, row) }, plain(t.name));
    const row = make("tr", { title: t.opaque ?? t.error ?? undefined }, make("th", { scope: "row" }, button), ...cells);
    return row;
  });
  const focused = document.activeElement?.closest?.("#table thead") ? state.sort : null;
  $("table").replaceChildren(make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
  if (focused) [...$("table").querySelectorAll("thead button")].find((b) => b.textContent === COLUMNS.find(([n]) => n === focused)[1])?.focus();
  $("count").textContent = rows.length === state.rows.length ? `${count(rows.length)} rows` : `${count(rows.length)} of ${count(state.rows.length)} rows`;
  $("more").hidden = rows.length <= state.shown;
  $("more").textContent = `Show ${count(Math.min(ROWS * 4, rows.length - state.shown))} more`;
}
function sortBy(name) {
  state.down = state.sort === name ? !state.down : !["name", "dtype", "first"].includes(name);
  state.sort = name;
  table();
}
$("filter").oninput = () => { state.shown = ROWS; table(); };
$("odd").onchange = () => { state.shown = ROWS; table(); };
$("more").onclick = () => { state.shown += ROWS * 4; table(); };

function list(updates, withFile) {
  const columns = [
    ["step", (u) => count(u.step)], ["sender", (u) => count(u.sender)], ["bytes", (u) => bytes(u.bytes)],
    ["ratio", (u) => real(u.ratio)], ["kept", (u) => share(u.density)], ["norm", (u) => real(u.norm)],
    ["NaN", (u) => count(u.nan)], ["Inf", (u) => count(u.infinite)], ["state", (u) => (u.complete ? "whole" : "damaged")],
  ];
  if (withFile) columns.unshift(["file", (u) => plain(u.file)]);
  const cells = (u) => columns.map(([name, text]) => make(name === "file" ? "th" : "td", { scope: name === "file" ? "row" : undefined, class: (u.nan > 0 && name === "NaN") || (u.infinite > 0 && name === "Inf") || (!u.complete && name === "state") ? "bad" : undefined }, text(u)));
  $("list").replaceChildren(
    make("thead", {}, make("tr", {}, ...columns.map(([name]) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...updates.slice(0, 5000).map((u) => make("tr", {}, ...cells(u)))),
  );
}

async function detail(t, row) {
  document.querySelectorAll("tr.chosen").forEach((other) => other.classList.remove("chosen"));
  row.classList.add("chosen");
  const from = document.activeElement;
  const close = () => { $("detail").hidden = true; row.classList.remove("chosen"); from?.focus(); };
  const facts = [
    ["Type", t.dtype], ["Shape", shape(t.shape)], ["Elements", count(t.elements)], ["Bytes", bytes(Math.round(t.bytes))],
    ["Norm", real(t.norm)], ["Mean", real(t.mean)], ["Std", real(t.std)], ["Min", real(t.min)], ["Max", real(t.max)],
    ["Zero", t.zeros === null || t.zeros === undefined ? "-" : `${count(t.zeros)} (${share(t.zeros / Math.max(1, t.elements))})`],
    ["NaN", t.nan > 0 ? `${count(t.nan)}, first at ${place(t.first_nan, t.shape)}` : count(t.nan), t.nan > 0],
    ["Inf", t.infinite > 0 ? `${count(t.infinite)}, first at ${place(t.first_infinite, t.shape)}` : count(t.infinite), t.infinite > 0],
    t.support && t.support !== "all" ? ["Positions", t.support] : null, t.values && t.values !== "dense" ? ["Values", t.values] : null,
  ];
  const plots = make("div", { class: "plots" });
  const closing = make("button", { type: "button", class: "close", onclick: close }, "Close");
  $("detail").replaceChildren(
    closing, make("h3", {}, plain(t.name)),
    make("dl", {}, ...facts.filter(Boolean).map(([name, value, isBad]) => make("div", { class: isBad ? "bad" : undefined }, make("dt", {}, name), make("dd", {}, plain(String(value)))))),
    ...[t.opaque, t.error, t.placement].filter(Boolean).map((text) => make("p", { class: "note" }, plain(text))),
    plots,
  );
  $("detail").hidden = false;
  $("detail").scrollIntoView({ block: "nearest" });
  closing.focus({ preventScroll: true });
  $("detail").onkeydown = (event) => { if (event.key === "Escape") close(); };
  if (!state.isWhole) return plots.append(make("p", { class: "note" }, "Its numbers are being read."));
  try {
    const { value } = await ask({ do: "tensor", name: t.name });
    const drawn = [exponents(value), map(value)].filter(Boolean);
    plots.replaceChildren(...drawn);
  } catch (error) {
    plots.append(make("p", { class: "note" }, plain(error.message)));
  }
}

/** How many elements have which power of two, on a logarithmic scale. */
function exponents({ exponents: { first, counts }, updates, negative }) {
  if (counts.length === 0) return null;
  const [width, height, low] = [460, 130, 16];
  const most = Math.log1p(Math.max(...counts));
  const step = width / counts.length;
  const NS = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(NS, "svg");
  const draw = (tag, attributes, text) => {
    const element = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    svg.append(element);
    return element;
  };
  svg.setAttribute("viewBox", `0 0 ${width} ${height + low}`);
  svg.setAttribute("width", width);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `Magnitudes from 2^${first} to 2^${first + counts.length - 1}`);
  counts.forEach((n, i) => {
    if (n === 0) return;
    const tall = Math.max(1.5, (Math.log1p(n) / most) * height);
    const bar = draw("rect", { x: i * step, y: height - tall, width: Math.max(1, step - 1), height: tall });
    const title = document.createElementNS(NS, "title");
    title.textContent = `2^${first + i}: ${count(n)}`;
    bar.append(title);
  });
  const every = Math.max(1, Math.ceil(counts.length / 8));
  for (let i = 0; i < counts.length; i += every) draw("text", { x: i * step, y: height + 12 }, `2^${first + i}`);
  const all = counts.reduce((sum, n) => sum + n, 0);
  const of = updates > 1 ? `, of ${count(updates)} updates` : "";
  return make("figure", {}, svg, make("figcaption", {}, `Elements by magnitude, on a logarithmic scale${of}; ${share(negative / all)} are negative`));
}

/** Where the elements are that are not zero. */
function map({ grid }) {
  if (!grid || grid.shares.length === 0) return null;
  const scale = Math.max(1, Math.floor(260 / Math.max(grid.width, grid.height)));
  const canvas = make("canvas", { width: grid.width, height: grid.height, role: "img", "aria-label": "Places of the elements that are not zero" });
  canvas.style.width = `${grid.width * scale}px`;
  canvas.style.height = `${Math.max(grid.height * scale, 10)}px`;
  const context = canvas.getContext("2d");
  const image = context.createImageData(grid.width, grid.height);
  const ink = matchMedia("(prefers-color-scheme:dark)").matches ? [110, 162, 245] : [38, 99, 235];
  grid.shares.forEach((share, i) => {
    image.data.set([...ink, share === 0 ? 0 : 40 + Math.round(215 * share)], i * 4);
  });
  context.putImageData(image, 0, 0);
  return make("figure", {}, canvas, make("figcaption", {}, `Share of elements that are not zero: ${count(grid.rows)} rows, ${count(grid.columns)} columns`));
}

// Two files.
async function compare(files) {
  if (files.length === 0 || state.paths.length === 0) return;
  tab("compare");
  $("error").hidden = true;
  const mine = state;
  const size = [...files, ...mine.files].reduce((sum, { file }) => sum + file.size, 0);
  work("Comparing", size);
  try {
    const { value, warnings } = await ask({ do: "compare", files, paths: mine.paths });
    if (mine !== state) return;
    mine.report = false;
    const name = plain(files.length === 1 ? files[0].path : `${count(files.length)} files`);
    differences(value, name, warnings);
  } catch (error) {
    fail(error);
    return;
  }
  work("");
}

function differences(value, name, warnings) {
  const isDiff = value.only_in_a !== undefined;
  const of = (t) => (isDiff ? t.errors : t);
  const columns = [
    ["tensor", (t) => plain(t.name)],
    ...(isDiff ? [["type", (t) => (t.dtype_a === t.dtype_b ? t.dtype_a : `${t.dtype_a} / ${t.dtype_b}`)], ["shape", (t) => (shape(t.shape_a) === shape(t.shape_b) ? shape(t.shape_a) : `${shape(t.shape_a)} / ${shape(t.shape_b)}`)], ["differing", (t) => (t.differing === null ? "-" : count(t.differing))]] : [["elements", (t) => count(t.elements)], ["norm", (t) => real(t.norm)]]),
    ["max abs", (t) => real(of(t)?.max_abs)],
    ["rel L2", (t) => real(of(t)?.relative_l2)],
    ["cosine", (t) => (of(t) && of(t).cosine !== null ? of(t).cosine.toFixed(6) : "-")],
    ["signs", (t) => share(of(t)?.sign_agreement)],
    ...(isDiff ? [] : [["energy", (t) => share(t.energy_kept)]]),
  ];
  const rows = [...value.tensors].sort((a, b) => (of(b)?.relative_l2 ?? Infinity) - (of(a)?.relative_l2 ?? Infinity));
  const lone = (names, where) => names.length === 0 ? [] : [`only in ${where}: ${names.slice(0, 20).map(plain).join(", ")}${names.length > 20 ? `, and ${count(names.length - 20)} more` : ""}`];
  const shownName = plain(state.paths.length === 1 ? state.paths[0] : "the files");
  const differing = isDiff ? value.tensors.filter((t) => !t.equal).length : 0;
  const total = isDiff ? value.total : value.all;
  const lines = isDiff
    ? [value.tensors.length === 0 ? `No tensor of ${shownName} has the name of one of ${name}.` : value.equal ? `Equal to ${name}: ${count(total.tensors)} tensors, ${count(total.elements)} elements.` : `Against ${name}: ${count(differing)} of ${count(value.tensors.length)} common tensors differ; relative L2 ${real(total.relative_l2)}, cosine ${total.cosine?.toFixed(6) ?? "-"}.`,
       ...lone(value.only_in_a, name), ...lone(value.only_in_b, shownName), ...lone(value.not_compared, "both, and not compared").slice(0, 1), value.advice ? plain(value.advice.replace(/: (--strip-prefix .*)$/, " (`gcodec diff $1`)")) : ""]
    : [`Against ${name}: relative L2 ${real(total.relative_l2)}, cosine ${total.cosine?.toFixed(6) ?? "-"}, energy ${share(total.energy_kept)}.`];
  $("verdict").replaceChildren(...[...lines, ...warnings.map(plain)].filter(Boolean).flatMap((line) => [line, make("br")]));
  $("differences").replaceChildren(
    make("thead", {}, make("tr", {}, ...columns.map(([title]) => make("th", { scope: "col" }, title)))),
    make("tbody", {}, ...rows.slice(0, 5000).map((t) => make("tr", {}, ...columns.map(([title, text], i) => make(i === 0 ? "th" : "td", { scope: i === 0 ? "row" : undefined }, text(t)))))),
  );
  $("differences").parentElement.hidden = rows.length === 0;
}

// Tabs.
const tabs = () => [...document.querySelectorAll("[role=tab]")].filter((t) => !t.hidden);
function tab(name) {
  state.tab = name;
  for (const button of document.querySelectorAll("[role=tab]")) {
    const isChosen = button.id === `tab-${name}`;
    button.setAttribute("aria-selected", isChosen);
    button.tabIndex = isChosen ? 0 : -1;
    $(button.getAttribute("aria-controls")).hidden = !isChosen;
  }
  if (name === "report") report();
}
document.querySelectorAll("[role=tab]").forEach((button) => {
  button.onclick = () => tab(button.id.slice(4));
  button.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const all = tabs();
    const next = all[(all.indexOf(button) + step + all.length) % all.length];
    next.focus();
    tab(next.id.slice(4));
  };
});

// The report of `inspect --html`, and files to keep.
async function html() {
  state.html = state.report ? state.html : (await ask({ do: "html", paths: state.paths })).value;
  state.report = true;
  return state.html;
}
async function report() {
  if (!state.isWhole || (state.report && $("frame").srcdoc)) return;
  work("Making the report");
  try {
    $("frame").srcdoc = await html();
    work("");
  } catch (error) {
    fail(error);
  }
}
function save(text, type, ending) {
  const name = (state.paths[0] ?? "report").split("/").pop();
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: `${name}.${ending}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
$("save-html").onclick = async () => { try { save(await html(), "text/html", "html"); } catch (error) { fail(error); } };
$("save-json").onclick = () => save(state.json, "application/json", "json");

// Files from the disk.
const chosenFiles = (input) => [...input.files].map((file) => ({ file, path: file.webkitRelativePath || file.name }));
for (const [button, input, use] of [["choose", "files", open], ["folder", "tree", open], ["other", "reference", compare], ["others", "references", compare]]) {
  $(button).onclick = () => $(input).click();
  $(input).onchange = () => { const files = chosenFiles($(input)); $(input).value = ""; use(files); };
}

/** Returns the files of a drop; those of folders with their paths. */
async function dropped(transfer) {
  // Whatever is asked of an item must be asked at once. A page of a disk gets files only as such in Chromium,
  // and what is in folders only by handles; other browsers have no handles, and need none.
  const items = [...transfer.items].filter((item) => item.kind === "file").map((item) => {
    const entry = item.webkitGetAsEntry?.();
    return { file: item.getAsFile(), entry, handle: entry?.isDirectory ? item.getAsFileSystemHandle?.() : null };
  });
  const files = [];
  for (const { file, entry, handle } of items) {
    if (!entry?.isDirectory) files.push({ file, path: file.name });
    else if (handle) await ofHandle(await handle, entry.name, 0, files);
    else await ofEntry(entry, entry.name, 0, files);
  }
  return files;
}

/** Most folders within each other. */
const DEPTH = 8;

async function ofHandle(handle, path, depth, files) {
  if (handle.kind === "file") files.push({ file: await handle.getFile(), path });
  else if (depth < DEPTH) for await (const inner of handle.values()) await ofHandle(inner, `${path}/${inner.name}`, depth + 1, files);
}

async function ofEntry(entry, path, depth, files) {
  if (entry.isFile) {
    files.push({ file: await new Promise((resolve, reject) => entry.file(resolve, reject)), path });
  } else if (depth < DEPTH) {
    const reader = entry.createReader();
    // It gives a hundred entries at a time.
    for (;;) {
      const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
      if (some.length === 0) break;
      for (const inner of some) await ofEntry(inner, `${path}/${inner.name}`, depth + 1, files);
    }
  }
}

let within = 0;
addEventListener("dragenter", (event) => { event.preventDefault(); within += 1; document.body.classList.add("over"); });
addEventListener("dragleave", () => { within -= 1; if (within <= 0) document.body.classList.remove("over"); });
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", async (event) => {
  event.preventDefault();
  within = 0;
  document.body.classList.remove("over");
  try {
    const files = await dropped(event.dataTransfer);
    await (state.tab === "compare" && !$("compare").hidden && !$("shown").hidden ? compare(files) : open(files));
  } catch (error) {
    fail(error);
  }
});
