"""Files that get their names once they are whole, and the tensors that go there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gcodec._tensors.dlpack import is_tensor
from gcodec._tensors.libraries import framework_of


@contextmanager
def written(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Gives a path beside another, to which the file there is renamed once it was written without
    error.

    sync: whether it is on the disk by then.
    """
    made = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with made.open("xb"):
        pass
    try:
        yield made
        if sync:
            with made.open("rb") as file:
                os.fsync(file.fileno())
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise


def check_rows(tensors: Mapping[str, Any]) -> set[str | None]:
    """Returns the libraries of the tensors.

    Raises:
        ValueError: one is no tensor, is sparse, or is not row-major.
        RuntimeError: tensors of PyTorch have memory in common.
    """
    for name, x in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"the name {name!r} is no text")
        if not is_tensor(x):
            raise ValueError(f"tensor {name!r} is a {type(x).__name__}, and no tensor")
        if framework_of(x) != "torch":
            continue
        if str(x.layout) != "torch.strided":
            raise ValueError(f"tensor {name!r} is sparse: give x.to_dense()")
        if not x.is_contiguous():
            raise ValueError(f"tensor {name!r} is not row-major: give x.contiguous()")
    _check_apart({name: x for name, x in tensors.items() if framework_of(x) == "torch"})
    return {framework_of(x) for x in tensors.values()}


def _check_apart(tensors: dict[str, Any]) -> None:
    spans = [(str(x.device), x.data_ptr(), x.data_ptr() + x.nbytes, name) for name, x in tensors.items() if x.nbytes]
    spans = sorted(span for span in spans if not span[0].startswith("meta"))
    last: tuple[str, int, int, str] | None = None
    for span in spans:
        if last is not None and span[0] == last[0] and span[1] < last[2]:
            raise RuntimeError(
                f"tensors {last[3]!r} and {span[3]!r} have memory in common, which the file would have twice: give one of "
                "them, or x.clone()"
            )
        last = span
