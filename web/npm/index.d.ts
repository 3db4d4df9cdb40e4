/** Bytes that are read by ranges. */
export interface RangeSource {
  name?: string;
  size: number;
  /** Returns `length` bytes from `offset` on. */
  read(offset: number, length: number): Promise<Uint8Array | ArrayBuffer> | Uint8Array | ArrayBuffer;
}

/**
 * A file: an http(s) URL, whose server should answer ranges; in node also a path or a file URL; a Blob; bytes;
 * or anything that reads ranges.
 */
export type Source = string | URL | Blob | ArrayBuffer | ArrayBufferView | RangeSource;

export interface OpenOptions {
  /** Name of the file: the step and the sender of a dump may stand in it. */
  name?: string;
  /** Most bytes to keep of sources that answer later. Default: 1 GiB. Bytes, paths in node, and Blobs in workers keep none. */
  cacheBytes?: number;
  /** The module, where `gcodec.wasm` does not lie beside `index.mjs`. Only that of the first call counts. */
  wasm?: BufferSource | WebAssembly.Module;
}

/** An error of gcodec. */
export class GcodecError extends Error {
  /** usage: the call is wrong. invalid: the file is. limit: it needs too much memory. io: reading failed. */
  code: "usage" | "invalid" | "limit" | "io" | "bug";
}

/** A tensor without its elements. */
export interface Header {
  name: string;
  dtype: string;
  /** null if the file does not say it. */
  shape: number[] | null;
  bytes: number;
  /** Why the elements are not read, if they are not. */
  opaque?: string;
}

/** An update of a stream, and its manifest. */
export interface UpdateHeader {
  step: number;
  round: number;
  sender: number;
  world: number;
  label: string;
  delta: boolean;
  tensors: Header[];
}

export interface Headers {
  kind: string;
  /** Of a file of tensors. */
  metadata?: Record<string, string>;
  tensors?: Header[];
  faults?: { code: string; message: string }[];
  /** Of a stream. */
  updates?: UpdateHeader[];
}

/** A tensor's row of a report. Numbers that are not known are null. */
export interface TensorReport {
  name: string;
  dtype: string;
  shape: number[];
  elements: number;
  support: string;
  values: string;
  kept: number | null;
  density: number | null;
  ratio: number;
  finite: number | null;
  nan: number | null;
  infinite: number | null;
  first_nan: number | null;
  first_infinite: number | null;
  norm: number | null;
  min: number | null;
  max: number | null;
  mean: number | null;
  std: number | null;
  zeros: number | null;
  error: string | null;
  opaque?: string;
  placement?: string;
}

export interface UpdateReport {
  step: number;
  sender: number;
  bytes: number;
  elements: number;
  ratio: number;
  norm: number | null;
  nan: number;
  infinite: number;
  complete: boolean;
  tensors: TensorReport[];
}

/** What `gcodec inspect --json` prints for a file; docs/inspect.schema.json describes all of it. */
export interface FileReport {
  file: string;
  kind: string;
  bytes: number;
  ok: boolean;
  metadata: Record<string, string>;
  updates: UpdateReport[];
  faults: { offset: number; bytes: number; error: string }[];
  whole: string | null;
}

export interface Inspection {
  reports: FileReport[];
  failures: { code: string; message: string }[];
  /** What is odd, in words. */
  advice: string[];
  warnings: string[];
  /** The text of `gcodec inspect --json`. */
  json: string;
}

export type TypedArray =
  | Float64Array | Float32Array | Int8Array | Int16Array | Int32Array | BigInt64Array
  | Uint8Array | Uint16Array | Uint32Array | BigUint64Array;

/** A tensor. `bf16` has its bits in a Uint16Array, and so has `f16` without Float16Array; floats of 8 and 4 bits are bytes. */
export interface Tensor {
  name: string;
  dtype: string;
  shape: number[];
  data: TypedArray;
  toFloat32(): Float32Array;
}

export interface Errors {
  max_abs: number | null;
  relative_l2: number | null;
  cosine: number | null;
  sign_agreement: number | null;
}

/** What `gcodec diff --json` prints. */
export interface Difference {
  equal: boolean;
  tensors: { name: string; equal: boolean; dtype_a: string; dtype_b: string; shape_a: number[]; shape_b: number[]; differing: number | null; errors: Errors | null }[];
  only_in_a: string[];
  only_in_b: string[];
  not_compared: string[];
  total: Errors & { tensors: number; elements: number; differing: number };
  advice: string | null;
}

export type Loss = Errors & { name: string; elements: number; norm: number; energy_kept: number };

/** What `gcodec inspect --against --json` prints. */
export interface Losses {
  tensors: Loss[];
  all: Loss;
  updates: (Loss & { step: number | null; sender: number | null })[];
  opaque: { name: string; dtype: string; bytes: number; differing: number | null }[];
}

/** Files that were opened. Only what an answer needs is read. */
export interface Opened {
  /** The inputs among the files: shards stand as their index. */
  readonly paths: string[];
  /** Returns names, types and shapes; of a stream, its updates with their manifests. */
  headers(path?: string): Promise<Headers>;
  /** Returns the report of `gcodec inspect`. `quick`: only headers are read. */
  inspect(options?: { paths?: string[]; quick?: boolean; tensor?: string }): Promise<Inspection>;
  /** Returns the statistics of one tensor, reading only that. */
  statistics(name: string, path?: string): Promise<TensorReport>;
  /** Returns a tensor; of a stream, decoded from an update, the last unless it is given. */
  tensor(name: string, options?: { path?: string; update?: number }): Promise<Tensor>;
  /** Compares two of the files, tensor by tensor. */
  diff(a: string, b: string): Promise<Difference>;
  /** Returns what the files lost of an original. */
  against(original: string, paths?: string[]): Promise<Losses>;
  /** Returns the page of `gcodec inspect --html`. */
  html(options?: { paths?: string[]; against?: string }): Promise<string>;
  /** Closes files of paths. */
  close(): void;
}

/** Opens a file, or several that belong together, by their names. */
export function open(source: Source | Record<string, Source>, options?: OpenOptions): Promise<Opened>;

/** Compiles the module, which the first `open` does otherwise. */
export function load(wasm?: BufferSource | WebAssembly.Module): Promise<WebAssembly.Module>;
