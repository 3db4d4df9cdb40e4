"""Nested containers of tensors as named tensors and back.

The name of a tensor is the way to it: `layers.0.weight` is `tree["layers"][0]["weight"]`. A flat dict keeps its names and
their order. Dicts, lists, tuples, named tuples and None are known here; what else JAX knows as a pytree is asked of JAX, if the
program has imported it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from gcodec.errors import InputError
from gcodec.tensors import is_tensor

ROOT = "tensor"
"""The name of a tensor that is encoded by itself."""


def named_tensors(tree: Any) -> dict[str, Any]:
    """The tensors of a tree by their names."""
    out: dict[str, Any] = {}
    for path, leaf in _walk(tree, ()):
        name = ".".join(path) or ROOT
        if name in out:
            raise InputError(f"two tensors of the tree have the name {name!r}")
        out[name] = leaf
    return out


def _walk(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if is_tensor(tree):
        yield path, tree
        return
    if tree is None:
        return
    children = _children(tree)
    if children is None:
        at = ".".join(path) or "the tree"
        raise TypeError(f"{at} is a {type(tree).__name__}: neither a tensor (with __dlpack__) nor a container of tensors")
    for key, child in children[0]:
        yield from _walk(child, (*path, key))


Children = tuple[list[tuple[str, Any]], Callable[[list[Any]], Any]]


def _children(tree: Any) -> Children | None:
    """A container's parts with their keys, and what makes a container of new ones; None if it is no container."""
    if isinstance(tree, Mapping):
        keys = list(tree)
        return [(str(key), tree[key]) for key in keys], lambda new: _like_mapping(tree, dict(zip(keys, new, strict=True)))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return list(zip(tree._fields, tree, strict=True)), lambda new: type(tree)(*new)
    if isinstance(tree, (list, tuple)):
        return [(str(i), child) for i, child in enumerate(tree)], lambda new: type(tree)(new)
    if "jax" in sys.modules:
        from jax import tree_util

        # One level: everything below the tree itself is a leaf.
        pairs, definition = tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
        if not tree_util.treedef_is_leaf(definition):
            keys = [_key(path) for path, _ in pairs]
            children = [(key, child) for key, (_, child) in zip(keys, pairs, strict=True)]
            return children, lambda new: tree_util.tree_unflatten(definition, new)
    return None


def _like_mapping(old: Mapping[Any, Any], new: dict[Any, Any]) -> Any:
    if type(old) is dict:
        return new
    if not isinstance(old, MutableMapping):
        return type(old)(new)  # type: ignore[call-arg]
    # A copy, so that what the type holds beside its entries (a default factory, for instance) stays.
    out = copy.copy(old)
    out.update(new)
    return out


def _key(path: tuple[Any, ...]) -> str:
    """A key of JAX's as text."""
    parts = [getattr(key, "name", getattr(key, "key", getattr(key, "idx", key))) for key in path]
    return ".".join(str(part) for part in parts)


def rebuild(like: Any, leaf: Callable[[str, Any], Any], path: tuple[str, ...] = ()) -> Any:
    """A tree such as `like`, in which `leaf(name, old)` takes the place of each tensor."""
    if is_tensor(like):
        return leaf(".".join(path) or ROOT, like)
    if like is None:
        return None
    children = _children(like)
    if children is None:
        raise TypeError(f"a {type(like).__name__} is neither a tensor nor a container of tensors")
    parts, build = children
    return build([rebuild(child, leaf, (*path, key)) for key, child in parts])
