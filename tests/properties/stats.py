"""Writes stats.json: what NumPy says about the public dumps. Run it with the folder of the public set.

For each tensor of a small dump, and for all tensors of any other dump as one vector: number of elements, of
zeros, L2 norm, smallest, largest, mean, standard deviation; and the counts of all exponents by sign.
"""

import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]


def tensors(path):
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for name, tensor in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        begin, end = (start + at for at in tensor["data_offsets"])
        if tensor["dtype"] == "BF16":
            values = (np.frombuffer(data[begin:end], "<u2").astype("<u4") << 16).view("<f4")
        else:
            values = np.frombuffer(data[begin:end], {"F32": "<f4", "F16": "<f2", "F64": "<f8"}[tensor["dtype"]])
        yield name, values


def describe(values):
    wide = values.astype(np.float64)
    keys, counts = np.unique(values[values != 0].astype("<f4").view("<u4") >> 23, return_counts=True)
    return {
        "elements": wide.size,
        "zeros": int(np.count_nonzero(wide == 0)),
        "norm": float(np.linalg.norm(wide)),
        "min": float(wide.min()),
        "max": float(wide.max()),
        "mean": float(wide.mean()),
        "std": float(wide.std()),
        "exponents": {str(key): int(count) for key, count in zip(keys, counts)},
    }


def main():
    small = sorted((ROOT / "tools/cli/gradients").glob("*.safetensors"))
    public = sorted(Path(sys.argv[1]).glob("*.safetensors"))
    found = {
        "small": {path.name: {name: describe(values) for name, values in tensors(path)} for path in small},
        "public": {path.name: describe(np.concatenate([v for _, v in tensors(path)])) for path in public},
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(found, indent=0, separators=(",", ":")) + "\n")


main()
