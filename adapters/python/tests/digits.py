"""The task of the trainers' tests: handwritten digits, from `tools/study/digits`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

TRAINED = 1440


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns pixels (0 to 1) and labels for training, then for testing."""
    file = Path(__file__).resolve().parents[3] / "tools/study/digits/digits.u8"
    records = np.fromfile(file, np.uint8).reshape(-1, 65)
    pixels, labels = records[:, :64].astype(np.float32) / 16, records[:, 64].astype(np.int64)
    return pixels[:TRAINED], labels[:TRAINED], pixels[TRAINED:], labels[TRAINED:]
