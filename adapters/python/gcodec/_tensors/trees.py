"""Trees of tensors: nested containers to named tensors, and back.

The name of a tensor is its path: `layers.0.weight` is `tree["layers"][0]["weight"]`. A flat dict keeps its
names and their order. Dicts, lists, tuples, named tuples and None are known here. JAX decides about other
types, if the program has imported JAX: its pytrees are containers too.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from gcodec._tensors.dlpack import is_tensor
from gcodec.errors import InputError

ROOT = "tensor"
"""The name of a tensor that is encoded by itself, without a container."""


def named_tensors(tree: Any) -> dict[str, Any]:
    """Returns the tensors of a tree by name, or those of an iterator of names and tensors, which it reads to
    its end."""
    out: dict[str, Any] = {}
    for path, leaf in _pairs(tree) if isinstance(tree, Iterator) else _walk(tree, ()):
        name = ".".join(path) or ROOT
        if name in out:
            raise InputError(f"two tensors of the tree have the name {name!r}")
        out[name] = leaf
    return out


def _pairs(pairs: Iterator[Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(f"the iterator gives a {type(pair).__name__}: give pairs of a name and a tensor")
        yield from _walk(pair[1], (pair[0],))


def _walk(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if is_tensor(tree):
        yield path, tree
        return
    if tree is None:
        return
    children = _children(tree)
    if children is None:
        at = ".".join(path) or "the tree"
        raise TypeError(
            f"{at} is a {type(tree).__name__}: give tensors (with __dlpack__) or a container of tensors, and leave out what is "
            'neither, as in {name: x for name, x in state.items() if hasattr(x, "__dlpack__")}'
        )
    for key, child in children[0]:
        yield from _walk(child, (*path, key))


_Children = tuple[list[tuple[str, Any]], Callable[[list[Any]], Any]]


def _children(tree: Any) -> _Children | None:
    """Returns a container's children with their keys, and a function that builds it from new children.

    None if `tree` is not a container.
    """
    if isinstance(tree, Mapping):
        keys = list(tree)
        return [(str(key), tree[key]) for key in keys], lambda new: _like_mapping(tree, dict(zip(keys, new, strict=True)))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return list(zip(tree._fields, tree, strict=True)), lambda new: type(tree)(*new)
    if isinstance(tree, (list, tuple)):
        return [(str(i), child) for i, child in enumerate(tree)], lambda new: type(tree)(new)
    if "jax" in sys.modules:
        from jax import tree_util

        # Flatten one level: every child of the tree is a leaf.
        pairs, definition = tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
        if not tree_util.treedef_is_leaf(definition):
            keys = [path_name(path) for path, _ in pairs]
            children = [(key, child) for key, (_, child) in zip(keys, pairs, strict=True)]
            return children, lambda new: tree_util.tree_unflatten(definition, new)
    return None


def _like_mapping(old: Mapping[Any, Any], new: dict[Any, Any]) -> Any:
    if type(old) is dict:
        return new
    if not isinstance(old, MutableMapping):
        return type(old)(new)  # type: ignore[call-arg]
    # A copy keeps what the type holds beside its entries, such as a default factory.
    out = copy.copy(old)
    out.update(new)
    return out


def path_name(path: tuple[Any, ...]) -> str:
    """Returns a JAX key path as the name of its leaf."""
    parts = [getattr(key, "name", getattr(key, "key", getattr(key, "idx", key))) for key in path]
    return ".".join(str(part) for part in parts)


def rebuild(like: Any, leaf: Callable[[str, Any], Any], path: tuple[str, ...] = ()) -> Any:
    """Returns a tree with the structure of `like`, in which `leaf(name, old)` replaces each tensor."""
    if is_tensor(like):
        return leaf(".".join(path) or ROOT, like)
    if like is None:
        return None
    children = _children(like)
    if children is None:
        at = ".".join(path) or "the tree"
        raise TypeError(f"{at} of `like` is a {type(like).__name__}: use tensors and containers of tensors, and leave it out")
    parts, build = children
    return build([rebuild(child, leaf, (*path, key)) for key, child in parts])
