// The page's worker: reads the dropped files by ranges, and asks the module.
import { Engine, GcodecError } from "./engine.mjs";

/** Folder of the files with which the others are compared. */
const SECOND = "compared";

let module;
let first = [];
let second = [];
/** Has the first files and their report. */
let engine;
let read = 0;
let told = 0;

function readAt(files, file, offset, out) {
  const part = files[file].file.slice(offset, offset + out.length);
  const bytes = new Uint8Array(new FileReaderSync().readAsArrayBuffer(part));
  if (bytes.length !== out.length) throw new Error("the file became shorter while it was read");
  out.set(bytes);
  read += bytes.length;
  const now = Date.now();
  if (now - told > 80) {
    told = now;
    postMessage({ read });
  }
}

function engineOf(files) {
  const made = new Engine(module, (file, offset, out) => readAt(files, file, offset, out));
  files.forEach(({ path, file }, number) => made.add(path, number, file.size));
  return made;
}

const requests = {
  async start({ wasm }) {
    const packed = new Blob([wasm]).stream().pipeThrough(new DecompressionStream("gzip"));
    module = await WebAssembly.compile(await new Response(packed).arrayBuffer());
  },
  open({ files }) {
    [first, second] = [files, []];
    engine = engineOf(first);
    return engine.ask({ do: "inputs" });
  },
  report({ paths, quick }) {
    return engine.ask({ do: "report", paths, quick });
  },
  tensor({ name }) {
    return engine.ask({ do: "tensor", name });
  },
  compare({ files, paths }) {
    second = files.map(({ path, file }) => ({ path: `${SECOND}/${path}`, file }));
    const inputs = engineOf(second).ask({ do: "inputs" }).value;
    const both = engineOf([...first, ...second]);
    if (inputs.length === 1 && paths.length === 1) {
      return both.ask({ do: "diff", a: inputs[0], b: paths[0] });
    }
    const original = inputs.length === 1 ? inputs[0] : SECOND;
    return both.ask({ do: "against", paths, original });
  },
  html({ paths }) {
    if (second.length > 0) {
      try {
        const inputs = engineOf(second).ask({ do: "inputs" }).value;
        const both = engineOf([...first, ...second]);
        both.ask({ do: "report", paths, quick: false });
        return both.ask({ do: "html", paths, against: inputs.length === 1 ? inputs[0] : SECOND });
      } catch (error) {
        // Files that have nothing in common: the report is of the first alone.
        if (!(error instanceof GcodecError) || error.code !== "usage") throw error;
      }
    }
    return engine.ask({ do: "html", paths, against: null });
  },
};

onmessage = async ({ data }) => {
  read = 0;
  try {
    const answer = await requests[data.do](data);
    postMessage({ id: data.id, value: answer?.value, warnings: answer?.warnings ?? [] });
  } catch (error) {
    // A thrown error leaves the module in the middle of its work.
    if (!(error instanceof GcodecError) || error.code === "bug" || error.code === "limit") {
      engine = module && engineOf(first);
    }
    const message =
      error instanceof DOMException
        ? "the file cannot be read: it was changed, moved or removed after it was dropped"
        : error.message;
    postMessage({ id: data.id, error: message, warnings: error.warnings ?? [] });
  }
};
