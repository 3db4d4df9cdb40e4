"""Settings of the tests with inference engines, in an environment of their own: `cargo xtask engines`."""

from __future__ import annotations

import os

# Before vLLM is imported: the engine in this process, without a network, and with little memory.
os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    HF_HUB_OFFLINE="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_LOGGING_LEVEL="WARNING",
    VLLM_NO_USAGE_STATS="1",
)
