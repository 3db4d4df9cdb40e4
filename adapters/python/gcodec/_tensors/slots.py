"""Memory for tensors that are decoded one after another: new memory takes longer than decoding into it."""

from __future__ import annotations

import sys
from typing import Any

_ALIGN = 64
_ROUND = 1 << 20
"""Slots are multiples of this, so that tensors of nearly one size use each other's memory."""

_OWN = 2
"""References to a slot that no tensor is in: of the list, and of the call that counts."""


class Slots:
    """Memory for some tensors of PyTorch at a time, which is used again when nothing refers to these.

    Args:
        most: bytes that it keeps, at most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._slots: list[bytearray] = []

    def take(self, sizes: list[int]) -> list[Any]:
        """Returns tensors of bytes of these sizes, in one slot. It is free when neither they nor others in
        their memory are alive."""
        import torch

        ends, end = [], 0
        for size in sizes:
            end += -end % _ALIGN + size
            ends.append(end)
        if end == 0:
            return [torch.empty(0, dtype=torch.uint8) for _ in sizes]
        # `frombuffer` refers to the slot as long as any tensor is in the memory.
        memory = torch.frombuffer(self._slot(end), dtype=torch.uint8)
        return [memory[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def _slot(self, size: int) -> bytearray:
        """Returns a free slot of this size or more; a new one if there is none."""
        free = [number for number in range(len(self._slots)) if sys.getrefcount(self._slots[number]) <= _OWN]
        fits = [number for number in free if len(self._slots[number]) >= size]
        if fits:
            return self._slots[min(fits, key=lambda number: len(self._slots[number]))]
        # Free ones go first; one whose tensors somebody keeps is theirs then.
        size += -size % _ROUND
        order = [*free, *(number for number in range(len(self._slots)) if number not in free)]
        kept = [self._slots[number] for number in order]
        while kept and sum(map(len, kept)) + size > self._most:
            kept.pop(0)
        kept.append(bytearray(size))
        self._slots = kept
        return self._slots[-1]
