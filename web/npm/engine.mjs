// A running module of gcodec: carries requests and answers, see web/src/abi.rs and web/src/session.rs.

/** An error of gcodec: `code` is usage, invalid, limit, io or bug. */
export class GcodecError extends Error {
  constructor(code, message) {
    super(message);
    this.name = "GcodecError";
    this.code = code;
  }
}

export class Engine {
  #exports;
  #panic = "";

  /**
   * @param {WebAssembly.Module} module
   * @param {(file: number, offset: number, out: Uint8Array) => void} readAt fills `out`, or throws; then this
   *   engine cannot be used any more
   */
  constructor(module, readAt) {
    const memory = () => this.#exports.memory.buffer;
    const own = {
      read_at: (file, offset, at, len) => readAt(file, offset, new Uint8Array(memory(), at >>> 0, len >>> 0)),
      panicked: (at, len) => {
        this.#panic = new TextDecoder().decode(new Uint8Array(memory(), at >>> 0, len >>> 0));
      },
    };
    const imports = { gcodec: own };
    // A library in the module imports functions for random numbers, which nothing here asks for.
    for (const { module: from, name } of WebAssembly.Module.imports(module)) {
      (imports[from] ??= {})[name] ??= () => {
        throw new Error(`${name} is not there`);
      };
    }
    this.#exports = new WebAssembly.Instance(module, imports).exports;
  }

  #write(text) {
    const bytes = new TextEncoder().encode(text);
    const at = this.#exports.gcodec_alloc(bytes.length) >>> 0;
    new Uint8Array(this.#exports.memory.buffer, at, bytes.length).set(bytes);
  }

  /** Adds file number `file`, which is at `path` and has `len` bytes. */
  add(path, file, len) {
    this.#write(path);
    this.#exports.gcodec_add(file, len);
  }

  /** Answers a request: `{value, warnings, bytes}`. */
  ask(request) {
    let len;
    try {
      this.#write(JSON.stringify(request));
      len = this.#exports.gcodec_ask() >>> 0;
    } catch (error) {
      if (!(error instanceof WebAssembly.RuntimeError || error instanceof RangeError)) throw error;
      const what = this.#panic || String(error.message);
      // Where memory ends, the module stops without a message.
      const isMemory = /capacity overflow|alloc|Out of memory/i.test(what) || (!this.#panic && /unreachable/.test(what));
      throw isMemory
        ? new GcodecError("limit", "it needs more memory than the browser gives; the command line reads it")
        : new GcodecError("bug", `a bug in gcodec: ${what}`);
    }
    const { memory, gcodec_text, gcodec_bytes, gcodec_bytes_len } = this.#exports;
    const text = new TextDecoder().decode(new Uint8Array(memory.buffer, gcodec_text() >>> 0, len));
    const { value, warnings, error } = JSON.parse(text);
    if (error) throw Object.assign(new GcodecError(error.code, error.message), { warnings });
    const bytes = new Uint8Array(memory.buffer, gcodec_bytes() >>> 0, gcodec_bytes_len() >>> 0).slice();
    return { value, warnings, bytes };
  }
}
