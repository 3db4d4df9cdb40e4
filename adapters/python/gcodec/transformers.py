"""Hugging Face models from folders of streams, which `gcodec compress` made of their safetensors files.

    model = gcodec.transformers.from_pretrained(AutoModelForCausalLM, "model")  # model.safetensors.gcu, ..

It goes through the argument `state_dict` of `from_pretrained`, a mapping of `gcodec.loading.Slice`:
transformers decodes each tensor when it takes it, on its threads, and the rest (devices, types, shards of
tensor parallelism, quantisation) is as with safetensors files.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from transformers import AutoConfig, GenerationConfig, PreTrainedModel

from gcodec._tensors.folders import weight_files
from gcodec.errors import InputError
from gcodec.limits import Limits
from gcodec.loading import safe_open


def state_dict(folder: str | os.PathLike[str], *, variant: str | None = None, limits: Limits | None = None) -> dict[str, Any]:
    """Returns the weights of a folder by name, which are decoded when they are indexed: `weights[name][...]`.

    Args:
        variant: see `from_pretrained` of transformers.
        limits: limits on the streams. Default: `Limits()`.

    Raises:
        InputError: the folder has no weights, or two of its files have a tensor of one name.
    """
    weights: dict[str, Any] = {}
    for path in weight_files(folder, variant):
        file = safe_open(path, "pt", limits=limits)
        for name in file.offset_keys():
            if name in weights:
                raise InputError(f"{path} has tensor {name!r}, which another file of the folder has, too")
            weights[name] = file.get_slice(name)
    return weights


def from_pretrained(
    model: Any,
    folder: str | os.PathLike[str],
    *model_args: Any,
    config: Any = None,
    subfolder: str = "",
    variant: str | None = None,
    limits: Limits | None = None,
    **kwargs: Any,
) -> Any:
    """Returns a model of a folder of streams, bit-equal to `model.from_pretrained(folder, ..)` of the plain
    files.

    Args:
        model: the class: `AutoModelForCausalLM`, `LlamaForCausalLM`, ..
        folder: the folder, with `config.json`. Its weights are streams or safetensors files.
        config: the configuration. Default: the folder's.
        limits: limits on the streams. Default: `Limits()`.
        model_args, subfolder, variant, kwargs: as for the class's `from_pretrained`.

    Raises:
        InputError: the folder has no weights, or one that its index lists is missing.
    """
    place = os.path.join(os.fspath(folder), subfolder)
    weights = state_dict(place, variant=variant, limits=limits)
    if config is None:
        of = getattr(model, "config_class", None) or AutoConfig
        config = of.from_pretrained(place)
    if not issubclass(model, PreTrainedModel):
        # A class such as AutoModelForCausalLM takes `state_dict` with a folder only.
        with torch.device("meta"):
            model = type(model.from_config(config))
    found = model.from_pretrained(None, *model_args, config=config, state_dict=weights, **kwargs)
    loaded = found[0] if isinstance(found, tuple) else found
    loaded.name_or_path = loaded.config.name_or_path = os.fspath(folder)
    if loaded.can_generate() and os.path.isfile(os.path.join(place, "generation_config.json")):
        loaded.generation_config = GenerationConfig.from_pretrained(place)
    return found
