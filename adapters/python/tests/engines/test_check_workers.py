"""gcodec's checks in workers of frameworks that have their own vLLM extension: docs/checks.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: `cargo xtask engines` installs it")
from safetensors.torch import load_file  # noqa: E402
from test_vllm import model, start  # noqa: E402

from gcodec.engines import vllm_checks  # noqa: E402


def test_a_worker_class_has_the_checks(tmp_path: Path) -> None:
    model(tmp_path)
    llm = start(tmp_path, worker_cls="checked_worker.Worker")
    weights = load_file(tmp_path / "model.safetensors")
    assert vllm_checks.differences(llm, weights) == []

    def double(made: Any) -> None:
        made.model.norm.weight.data.mul_(2)

    llm.apply_model(double)
    assert vllm_checks.differences(llm, weights) == ["model.norm.weight: other elements in rows 0 to 127"]
