// The package: opens files by ranges, and answers what the page answers. See index.d.ts.
import { Engine, GcodecError } from "./engine.mjs";

export { GcodecError };

const isNode = Boolean(globalThis.process?.versions?.node);
// Not named outright, so that bundlers for browsers do not look for them.
const node = (name) => import(/* @vite-ignore */ /* webpackIgnore: true */ `node:${name}`);

let compiled;
/** Compiles the module, once: the one beside this file, or the one that is given. */
export function load(wasm) {
  compiled ??= (async () => {
    if (wasm instanceof WebAssembly.Module) return wasm;
    const url = new URL("./gcodec.wasm", import.meta.url);
    let bytes = wasm;
    if (!bytes && isNode && url.protocol === "file:") bytes = await (await node("fs/promises")).readFile(url);
    bytes ??= await (await fetch(url)).arrayBuffer();
    return WebAssembly.compile(bytes);
  })().catch((error) => {
    compiled = undefined;
    throw error;
  });
  return compiled;
}

/** Bytes that are not there yet: the request is made again when they are. */
class Missing extends Error {
  constructor(file, offset, length) {
    super("bytes that were not read yet");
    Object.assign(this, { file, offset, length });
  }
}

/** First and largest number of bytes that are fetched ahead. */
const [AHEAD, MOST_AHEAD] = [1 << 18, 1 << 25];

/** Bytes of a source that arrive later, kept in pieces that do not overlap, by their offsets. */
class Cache {
  pieces = [];
  bytes = 0;
  #ahead = AHEAD;
  #end = -1;

  constructor(source) {
    this.source = source;
  }

  read(file, offset, out) {
    let at = offset;
    const end = offset + out.length;
    while (at < end) {
      const piece = this.pieces.find((p) => p.offset <= at && at < p.offset + p.data.length);
      if (!piece) throw new Missing(file, at, end - at);
      const part = piece.data.subarray(at - piece.offset, Math.min(end, piece.offset + piece.data.length) - piece.offset);
      out.set(part, at - offset);
      at += part.length;
    }
  }

  async fetch({ offset, length }, room) {
    // What follows what was read before is read in larger and larger pieces.
    this.#ahead = offset === this.#end ? Math.min(this.#ahead * 2, MOST_AHEAD) : AHEAD;
    const next = this.pieces.reduce((least, p) => (p.offset >= offset ? Math.min(least, p.offset) : least), this.source.size);
    const want = Math.min(Math.max(length, this.#ahead), next - offset);
    if (want > room) {
      throw new GcodecError("limit", `${this.source.name}: more than cacheBytes are needed at once; in a worker, or from a file in node, nothing is kept`);
    }
    const read = new Uint8Array(await this.source.read(offset, want));
    if (read.length !== want) throw new GcodecError("io", `${this.source.name}: ${read.length} bytes instead of ${want} at ${offset}`);
    this.pieces.push({ offset, data: read });
    this.bytes += want;
    this.#end = offset + want;
  }
}

async function sourceOf(source, name) {
  if (source instanceof ArrayBuffer) source = new Uint8Array(source);
  if (ArrayBuffer.isView(source)) {
    const bytes = new Uint8Array(source.buffer, source.byteOffset, source.byteLength);
    return { name: name ?? "data", size: bytes.length, readInto: (offset, out) => out.set(bytes.subarray(offset, offset + out.length)) };
  }
  if (source instanceof Blob) {
    const of = { name: name ?? source.name ?? "blob", size: source.size };
    if (typeof FileReaderSync !== "undefined") {
      return { ...of, readInto: (offset, out) => out.set(new Uint8Array(new FileReaderSync().readAsArrayBuffer(source.slice(offset, offset + out.length)))) };
    }
    return { ...of, read: async (offset, length) => new Uint8Array(await source.slice(offset, offset + length).arrayBuffer()) };
  }
  const text = source instanceof URL ? source.href : source;
  if (typeof text === "string") {
    const isPath = isNode && !/^https?:/i.test(text);
    return isPath ? ofPath(/^file:/i.test(text) ? (await node("url")).fileURLToPath(text) : text, name) : ofUrl(text, name);
  }
  if (typeof source?.read === "function" && Number.isSafeInteger(source.size)) {
    return { name: name ?? source.name ?? "source", size: source.size, read: (o, l) => source.read(o, l) };
  }
  throw new TypeError("a source is a path or URL, a Blob, bytes, or an object with size and read");
}

async function ofPath(path, name) {
  const [fs, { basename }] = [await node("fs"), await node("path")];
  let file;
  try {
    file = fs.openSync(path, "r");
  } catch (error) {
    throw new GcodecError("io", `${path}: ${error.message}`);
  }
  const readInto = (offset, out) => {
    for (let done = 0; done < out.length; ) {
      const read = fs.readSync(file, out, done, out.length - done, offset + done);
      if (read === 0) throw new GcodecError("io", `${path}: it became shorter while it was read`);
      done += read;
    }
  };
  return { name: name ?? basename(path), size: fs.fstatSync(file).size, readInto, close: () => fs.closeSync(file) };
}

async function ofUrl(url, name) {
  const get = async (offset, length) => {
    const answer = await fetch(url, { headers: { Range: `bytes=${offset}-${offset + length - 1}` } });
    if (answer.status !== 206 && answer.status !== 200) throw new GcodecError("io", `${url}: ${answer.status} ${answer.statusText}`);
    return answer;
  };
  const first = await get(0, 1);
  const size = Number(/\/(\d+)$/.exec(first.headers.get("content-range") ?? "")?.[1]);
  name ??= decodeURIComponent(new URL(url, globalThis.location?.href).pathname.split("/").pop() || "file");
  if (first.status === 200 || !Number.isSafeInteger(size)) {
    // A server without ranges sends all of it.
    const whole = first.status === 200 ? first : await fetch(url);
    return sourceOf(new Uint8Array(await whole.arrayBuffer()), name);
  }
  await first.arrayBuffer();
  return { name, size, read: async (offset, length) => {
    const answer = await get(offset, length);
    const bytes = new Uint8Array(await answer.arrayBuffer());
    return answer.status === 200 ? bytes.subarray(offset, offset + length) : bytes;
  } };
}

/** Opens a file, or several that belong together, by their names. */
export async function open(source, { name, cacheBytes = 1 << 30, wasm } = {}) {
  const isMany = Object.getPrototypeOf(source ?? 0) === Object.prototype && typeof source.read !== "function";
  const all = isMany ? Object.entries(source) : [[name, source]];
  const sources = await Promise.all(all.map(([of, one]) => sourceOf(one, of)));
  const opened = new Opened(await load(wasm), sources, cacheBytes);
  opened.paths = await opened.inputs();
  return opened;
}

class Opened {
  paths = [];
  #module;
  #sources;
  #caches;
  #cacheBytes;
  #engine;
  #last = Promise.resolve();

  constructor(module, sources, cacheBytes) {
    [this.#module, this.#sources, this.#cacheBytes] = [module, sources, cacheBytes];
    this.#caches = sources.map((source) => (source.readInto ? null : new Cache(source)));
  }

  /** Answers a request; one after another, since they share the engine. */
  #ask(request) {
    const answer = this.#last.then(() => this.#answer(request));
    this.#last = answer.catch(() => {});
    return answer;
  }

  async #answer(request) {
    const caches = this.#caches.filter(Boolean);
    const held = () => caches.reduce((sum, cache) => sum + cache.bytes, 0);
    for (;;) {
      try {
        this.#engine ??= this.#start();
        return this.#engine.ask(request);
      } catch (error) {
        // A thrown error left the engine in the middle of its work.
        if (!(error instanceof GcodecError) || ["bug", "limit", "io"].includes(error.code)) this.#engine = undefined;
        if (!(error instanceof Missing)) throw error;
        if (held() >= this.#cacheBytes / 2 && !request.kept) {
          // What earlier requests read makes room.
          caches.forEach((cache) => Object.assign(cache, { pieces: [], bytes: 0 }));
          request = { ...request, kept: true };
          continue;
        }
        await this.#caches[error.file].fetch(error, this.#cacheBytes - held());
      }
    }
  }

  #start() {
    const engine = new Engine(this.#module, (file, offset, out) => {
      const source = this.#sources[file];
      return source.readInto ? source.readInto(offset, out) : this.#caches[file].read(file, offset, out);
    });
    this.#sources.forEach(({ name, size }, file) => engine.add(name, file, size));
    return engine;
  }

  #path(path) {
    if (path !== undefined) return path;
    if (this.paths.length === 1) return this.paths[0];
    throw new GcodecError("usage", `one of these files must be named: ${this.paths.join(", ")}`);
  }

  async inputs() {
    return (await this.#ask({ do: "inputs" })).value;
  }

  async headers(path) {
    return (await this.#ask({ do: "headers", path: this.#path(path) })).value;
  }

  async inspect({ paths = this.paths, quick = false, tensor } = {}) {
    const { value, warnings } = await this.#ask({ do: "report", paths, quick, tensor });
    return { ...value, warnings };
  }

  async statistics(name, path) {
    const { reports } = await this.inspect({ paths: [this.#path(path)], tensor: name });
    const found = reports.flatMap((report) => report.updates).flatMap((update) => update.tensors);
    if (found.length === 0) throw new GcodecError("usage", `no tensor ${JSON.stringify(name)}`);
    return found[0];
  }

  async tensor(name, { path, update } = {}) {
    const { value, bytes } = await this.#ask({ do: "data", path: this.#path(path), name, update });
    return new Tensor(value, bytes);
  }

  async diff(a, b) {
    return (await this.#ask({ do: "diff", a, b })).value;
  }

  async against(original, paths = this.paths.filter((path) => path !== original)) {
    return (await this.#ask({ do: "against", paths, original })).value;
  }

  async html({ paths = this.paths, against } = {}) {
    await this.inspect({ paths });
    return (await this.#ask({ do: "html", paths, against })).value;
  }

  close() {
    this.#sources.forEach((source) => source.close?.());
    this.#engine = undefined;
  }
}

const ARRAYS = {
  f64: Float64Array, f32: Float32Array, f16: globalThis.Float16Array ?? Uint16Array, bf16: Uint16Array,
  i8: Int8Array, i16: Int16Array, i32: Int32Array, i64: BigInt64Array,
  u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, u64: BigUint64Array, bool: Uint8Array,
};

/** A tensor: its elements row-major, in the typed array of its type. */
class Tensor {
  constructor({ name, dtype, shape }, bytes) {
    [this.name, this.dtype, this.shape] = [name, dtype, shape];
    const of = ARRAYS[dtype] ?? Uint8Array;
    this.data = new of(bytes.buffer, 0, bytes.length / of.BYTES_PER_ELEMENT);
  }

  /** Returns the elements as 32-bit floats. */
  toFloat32() {
    const { dtype, data } = this;
    if (dtype === "f32") return data;
    if (dtype === "bf16") {
      const bits = Uint32Array.from(data, (x) => x << 16);
      return new Float32Array(bits.buffer);
    }
    if (dtype === "f16" && data instanceof Uint16Array) return Float32Array.from(data, half);
    if (!(dtype in ARRAYS)) throw new GcodecError("usage", `elements of ${dtype} are bytes here`);
    return Float32Array.from(data, Number);
  }
}

/** Returns the number of the bits of a half float. */
function half(bits) {
  const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
