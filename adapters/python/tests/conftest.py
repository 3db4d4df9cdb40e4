"""Fixtures of the tests. A test whose environment is incomplete is skipped, and the summary lists the
reason."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]

# JAX must not look for a GPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20260101)


@pytest.fixture
def gradient(rng: np.random.Generator) -> np.ndarray:
    """Heavy-tailed numbers, like gradients."""
    return (rng.standard_normal((300, 401)) ** 3).astype(np.float32)


@pytest.fixture(scope="session")
def command() -> str:
    """The command-line tool of this checkout, or else the package's script, which is the same program."""
    return os.environ.get("GCODEC_CLI") or str(Path(sysconfig.get_path("scripts")) / "gcodec")
