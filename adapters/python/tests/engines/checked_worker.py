"""A worker class of vLLM on the CPU with the checks, for `worker_cls`: docs/checks.md has that for GPUs."""

from __future__ import annotations

import unpacked_worker  # noqa: F401
from vllm.v1.worker.cpu_worker import CPUWorker

from gcodec.engines import vllm_checks


class Worker(CPUWorker, vllm_checks.Worker):
    pass
