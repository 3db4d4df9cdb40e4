// Files for the tests: made here, except those that need another program.
import { closeSync, ftruncateSync, mkdirSync, openSync, readFileSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";

const BYTES = { F32: 4, F64: 8, BF16: 2, U8: 1, I64: 8 };

/** Returns a safetensors file without its data: `tensors` are [name, type, shape]. */
export function header(tensors, metadata) {
  let at = 0;
  const entries = tensors.map(([name, dtype, shape]) => {
    const begin = at;
    at += shape.reduce((all, dim) => all * dim, BYTES[dtype]);
    return [name, { dtype, shape, data_offsets: [begin, at] }];
  });
  const all = metadata ? [["__metadata__", metadata], ...entries] : entries;
  const text = Buffer.from(JSON.stringify(Object.fromEntries(all)));
  const len = Buffer.alloc(8);
  len.writeBigUInt64LE(BigInt(text.length));
  return { head: Buffer.concat([len, text]), bytes: at };
}

/** Returns a safetensors file of f32 tensors: [name, shape, values]. */
export function safetensors(tensors, metadata) {
  const { head } = header(tensors.map(([name, shape]) => [name, "F32", shape]), metadata);
  return Buffer.concat([head, ...tensors.map(([, , values]) => Buffer.from(Float32Array.from(values).buffer))]);
}

export const wave = (n, scale = 1) => Array.from({ length: n }, (_, i) => scale * Math.sin(i * 1.7) * Math.exp(-(i % 37) / 9));

/** Returns a GGUF file with an f32 and a q8_0 tensor. */
function gguf() {
  const u32 = (x) => { const b = Buffer.alloc(4); b.writeUInt32LE(x); return b; };
  const u64 = (x) => { const b = Buffer.alloc(8); b.writeBigUInt64LE(BigInt(x)); return b; };
  const text = (t) => Buffer.concat([u64(t.length), Buffer.from(t)]);
  const head = Buffer.concat([
    Buffer.from("GGUF"), u32(3), u64(2), u64(0),
    text("a"), u32(1), u64(8), u32(0), u64(0),
    text("q"), u32(1), u64(64), u32(8), u64(32),
  ]);
  const padded = Buffer.concat([head, Buffer.alloc(-head.length & 31)]);
  const blocks = Buffer.alloc(68, 3);
  [0, 34].forEach((at) => blocks.writeUInt16LE(0x3c00, at));
  return Buffer.concat([padded, Buffer.from(Float32Array.from(wave(8)).buffer), blocks]);
}

/** Writes the files into a folder. `gcodec` runs the command line there. */
export function write(folder, gcodec) {
  mkdirSync(join(folder, "sharded"), { recursive: true });
  const put = (name, bytes) => writeFileSync(join(folder, name), bytes);
  const bad = wave(6000);
  bad[4321] = NaN;
  put("nan.safetensors", safetensors([["layer.0.weight", [60, 100], bad], ["layer.0.bias", [60], wave(60)]], { step: "200" }));
  put("model.gguf", gguf());
  for (const [number, at] of [[1, -1], [2, 77]]) {
    const values = wave(900, number);
    if (at >= 0) values[at] = NaN;
    put(`sharded/model-0000${number}-of-00002.safetensors`, safetensors([[`block.${number}.weight`, [30, 30], values]]));
  }
  put("sharded/model.safetensors.index.json", JSON.stringify({
    metadata: {}, weight_map: { "block.1.weight": "model-00001-of-00002.safetensors", "block.2.weight": "model-00002-of-00002.safetensors" },
  }));
  mkdirSync(join(folder, "compressed"));
  gcodec(["compress", "sharded", "-o", "compressed"]);
  const gradient = (scale) => safetensors([["w", [64, 64], wave(4096, scale)], ["b", [64], wave(64, scale)]]);
  for (const step of [1, 2, 3]) put(`step${step}.safetensors`, gradient(step));
  const steps = [1, 2, 3].map((step) => `step${step}.safetensors`);
  gcodec(["encode", ...steps, "-o", "run.gcu", "--codec", "topk:density=0.05"]);
  const damaged = readFileSync(join(folder, "run.gcu"));
  damaged[Math.floor(damaged.length / 2)] ^= 0x40;
  put("damaged.gcu", damaged);
  const whole = readFileSync(join(folder, "state.pt"));
  put("cut.pt", whole.subarray(0, 2000));
  const wrong = readFileSync(join(folder, "stored.npz"));
  wrong[200] ^= 1;
  put("damaged.npz", wrong);
  put("hostile.safetensors", Buffer.concat([Buffer.from([255, 255, 255, 255, 15, 0, 0, 0]), Buffer.from("{".repeat(5000))]));
  // The magic of files from before PyTorch 1.6, and a hundred thousand lists, one in the other.
  const magic = Buffer.from("\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", "latin1");
  const machine = Buffer.from("\x80\x02}.", "latin1");
  const deep = Buffer.concat([Buffer.from("\x80\x02", "latin1"), Buffer.alloc(100_000, "]"), Buffer.alloc(99_999, "a"), Buffer.from(".")]);
  put("deep.pt", Buffer.concat([magic, machine, deep, Buffer.from("\x80\x02].", "latin1")]));
  const json = Buffer.from(`{"a":${"[".repeat(100_000)}`);
  const len = Buffer.alloc(8);
  len.writeBigUInt64LE(BigInt(json.length));
  put("deep.safetensors", Buffer.concat([len, json]));
  put("pickle.pkl", Buffer.from("\x80\x04\x95", "latin1"));
}

/** Writes a safetensors file of more than 4 GB whose last tensor has one NaN; the rest is zero and takes no space. */
export function writeLarge(path) {
  const wide = 1 << 15;
  const { head, bytes } = header([["embedding", "F64", [wide, wide / 2 + 512]], ["head", "F32", [1024, 1024]]]);
  const file = openSync(path, "w");
  writeSync(file, head);
  ftruncateSync(file, head.length + bytes);
  const nan = Buffer.from(Float32Array.from([NaN]).buffer);
  writeSync(file, nan, 0, 4, head.length + bytes - 4 * 1024);
  closeSync(file);
  return head.length + bytes;
}
