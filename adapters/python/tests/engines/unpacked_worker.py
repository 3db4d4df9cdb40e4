"""A worker of vLLM on the CPU whose layers keep their weights: packing would remove them."""

from __future__ import annotations

from typing import Any

import torch
import vllm.model_executor.layers.utils as utils

from gcodec.engines import vllm_checks


def _linear(layer: Any, remove_weight: bool) -> None:
    layer.cpu_linear = torch.nn.functional.linear


utils.dispatch_cpu_unquantized_gemm = _linear


class Worker(vllm_checks.Worker):
    def gcodec_damage(self, rank: int, name: str, row: int) -> None:
        """Flips a bit of a parameter of one rank."""
        if self.rank == rank:  # type: ignore[attr-defined]
            bits = self.model_runner.get_model().get_parameter(name).data[row]
            (bits if bits.element_size() == 4 else bits.view(torch.int16)).view(-1)[3] ^= 1
