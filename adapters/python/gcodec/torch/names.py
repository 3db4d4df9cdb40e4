"""Names of a model's parameters, and state that is saved by these names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from gcodec._handshake import Tensors
from gcodec._native import WRAPPERS
from gcodec._tensors.dlpack import local
from gcodec.errors import InputError
from gcodec.shards import place_of

# Modules that torch.compile, FSDP and activation checkpointing put around a module, as names have them.
_PARTS = frozenset(wrapper.removesuffix(".") for wrapper in WRAPPERS)


def plain(name: str) -> str:
    """Returns a parameter's name without the parts that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in _PARTS)


def all_parameters_of(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Returns the parameters, also frozen ones, by their names in the model without wrappers around it or
    inside."""
    while True:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), torch.nn.Module):
            model = inner
        else:
            break
    out: dict[str, torch.nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        if plain(name) in out:
            raise InputError(f"two parameters have the name {plain(name)!r} without the wrappers of torch.compile")
        out[plain(name)] = parameter
    return out


def trainable(parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, torch.nn.Parameter]:
    """Returns the parameters that are not frozen."""
    return {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}


def parameters_of(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Returns the trainable parameters, by the names of `all_parameters_of`."""
    return trainable(all_parameters_of(model))


def described(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Returns the element types and shapes of tensors. A DTensor has those of this rank's part, and the type
    also says which part it is. Complex tensors have a last dimension of 2, because ranks
    exchange them as pairs."""
    return {name: (_kind(name, x), (*local(x).shape, *((2,) if x.is_complex() else ()))) for name, x in tensors.items()}


def _kind(name: str, x: torch.Tensor) -> str:
    dtype = str(x.dtype).removeprefix("torch.")
    place = place_of(name, x)
    return dtype if place is None else f"{dtype} at {tuple(place[1])} of {tuple(place[0])}"


def own(saved: Mapping[str, Any], tensors: Tensors, *, strict: bool = True) -> dict[str, Any]:
    """Returns saved sender state by the names of these tensors.

    strict: whether an entry of a tensor of another name or shape is an error; else it is dropped.

    Raises:
        InputError: an entry belongs to a tensor of another name or shape.
    """
    out: dict[str, Any] = {}
    for name, entry in saved.items():
        # A codec's own state has its name after the tensor's, and a shape of its own, except momenta.
        of, _, kind = plain(name).partition("#")
        wrong = ""
        if of not in tensors:
            wrong = f"it has {of!r}, and this model has {some(tensors)}"
        elif kind in ("", "momentum") and tuple(entry.shape) != tensors[of][1]:
            wrong = f"{of!r} has the shape {tuple(entry.shape)} there and {tensors[of][1]} here"
        if not wrong:
            out[plain(name)] = entry
        elif strict:
            raise InputError(f"the state is of another model: {wrong}. load_state_dict(state, strict=False) drops what does not fit")
    return out


def some(names: Iterable[str]) -> str:
    """Returns a few names, for a message."""
    listed = list(names)
    return ", ".join(map(repr, listed[:4])) + (f" and {len(listed) - 4} others" if len(listed) > 4 else "")
