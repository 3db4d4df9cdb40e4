"""Memory for bytes that travel, used again from step to step."""

from __future__ import annotations

import mmap

# Bytes from which large pages are worth it: as in `src/arch/pages.rs`, which says why.
_LARGE = 4 << 20
_PAGE = 2 << 20


class Spare:
    """Memory for the streams of a step: that of an earlier step if it is there, because new pages cost more
    than to fill them."""

    # Bytes that wait for the next step at most. What is compressed needs less, and a model needs the rest.
    MOST = 64 << 20

    def __init__(self) -> None:
        self._held: list[bytearray | mmap.mmap] = []

    def take(self, size: int) -> memoryview:
        """Returns this many bytes, with any content."""
        fitting = [memory for memory in self._held if size <= len(memory) <= 2 * size]
        if not fitting:
            return memoryview(_zeros(size))[:size]
        memory = min(fitting, key=len)
        self._held = [other for other in self._held if other is not memory]
        return memoryview(memory)[:size]

    def give(self, stream: memoryview) -> None:
        """Takes back the memory of a stream, which nobody may read or write any more."""
        memory = stream.obj
        if not isinstance(memory, bytearray | mmap.mmap) or any(other is memory for other in self._held):
            return
        if sum(map(len, self._held)) + len(memory) <= self.MOST:
            self._held.append(memory)


def _zeros(size: int) -> bytearray | mmap.mmap:
    """Returns at least this many zero bytes, on large pages if they are many and the system has those."""
    if size < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return bytearray(size)
    # Linux puts mappings of whole large pages at the beginning of one.
    memory = mmap.mmap(-1, -(-size // _PAGE) * _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass  # a system without them
    return memory
