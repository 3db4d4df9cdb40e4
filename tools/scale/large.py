"""Repeats the rows of a gradient's matrices, so that its tensors are as large as those of large models.

    python tools/scale/large.py IN.safetensors TIMES OUT.safetensors
"""

from __future__ import annotations

import sys

from safetensors.torch import load_file, save_file


def main() -> None:
    source, times, target = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    repeated = {name: t.repeat(times, *[1] * (t.dim() - 1)) if t.dim() > 1 else t for name, t in load_file(source).items()}
    save_file(repeated, target)


if __name__ == "__main__":
    main()
