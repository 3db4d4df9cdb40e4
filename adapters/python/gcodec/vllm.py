"""vLLM loads models from folders of streams, which `gcodec compress` made of their safetensors files.

    gcodec compress model --remove
    vllm serve model --load-format gcodec

vLLM finds the loader through the entry point `vllm.general_plugins` of this package. It decodes some
tensors at a time, the next ones while the model copies these.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight

from gcodec._tensors.folders import weight_files
from gcodec.loading import safe_open

LOAD_FORMAT = "gcodec"
"""The name of the loader in vLLM."""

_registered = False


def register() -> None:
    """Registers the loader; vLLM calls it through the entry point, in each of its processes."""
    global _registered
    if not _registered:
        register_model_loader(LOAD_FORMAT)(GcodecModelLoader)
        _registered = True


class GcodecModelLoader(DefaultModelLoader):
    """Loads the weights of a folder of streams; a folder may have safetensors files, too."""

    counter_before_loading_weights: float = 0.0

    def download_model(self, model_config: Any) -> None:
        """Checks that the folder has weights: nothing is downloaded."""
        weight_files(model_config.model)

    def _get_weights_iterator(self, source: Any) -> Iterator[tuple[str, Any]]:
        """Yields the weights of a source, with its prefix. Experts of other ranks are not decoded."""
        files = weight_files(os.path.join(source.model_or_path, source.subfolder or ""))
        if self.counter_before_loading_weights == 0.0:
            self.counter_before_loading_weights = time.perf_counter()
        for path in files:
            for name, tensor in self._weights_of(path, source):
                yield source.prefix + name, tensor

    def _weights_of(self, path: Path, source: Any) -> Iterator[tuple[str, Any]]:
        with safe_open(path, "pt") as file:
            names = file.offset_keys()
            if source.is_unused_weight is not None and all(map(source.is_unused_weight, names)):
                return
            yield from file.items([name for name in names if not should_skip_weight(name, self.local_expert_ids)])
