// Compiled, not run: the package's types say what its functions take and give.
import { GcodecError, open, type Difference, type Headers, type Inspection, type Tensor } from "gcodec";

export async function use(file: Blob, url: URL): Promise<number> {
  const opened = await open({ "a.safetensors": file, "b.safetensors": url }, { cacheBytes: 1 << 20 });
  const headers: Headers = await opened.headers("a.safetensors");
  const report: Inspection = await opened.inspect({ quick: true });
  const tensor: Tensor = await opened.tensor("w", { path: "a.safetensors" });
  const difference: Difference = await opened.diff("a.safetensors", "b.safetensors");
  const norm: number | null = (await opened.statistics("w", "a.safetensors")).norm;
  try {
    await open(new Uint8Array(4), { name: "x" });
  } catch (error) {
    if (error instanceof GcodecError && error.code === "invalid") return 1;
  }
  opened.close();
  return report.reports.length + tensor.toFloat32().length + (headers.tensors?.length ?? 0) + (norm ?? 0) + difference.total.elements;
}
