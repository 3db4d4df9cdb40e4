"""Memory of streams that is used again."""

from __future__ import annotations

from gcodec.torch.spare import Spare


def test_memory_is_lent_once_and_not_to_much_smaller_streams() -> None:
    spare = Spare()
    stream = spare.take(1000)
    assert len(stream) == 1000 and not any(stream)
    stream[:] = b"x" * 1000
    # Of a stream, a part gives all of its memory, once.
    spare.give(stream[10:])
    spare.give(stream)
    assert not any(spare.take(499))
    again, other = spare.take(990), spare.take(990)
    assert again.obj is stream.obj and len(again) == 990 and other.obj is not stream.obj
    # The memory of others is left alone.
    spare.give(memoryview(b"y" * 990))
    assert bytes(spare.take(990)) != b"y" * 990


def test_large_memory_is_whole_pages_and_bounded() -> None:
    spare = Spare()
    streams = [spare.take((5 << 20) + 3) for _ in range(20)]
    assert all(len(stream) == (5 << 20) + 3 and not stream[-1] for stream in streams)
    for stream in streams:
        stream[0] = 1
        spare.give(stream)
    taken = [spare.take((5 << 20) + 1) for _ in range(20)]
    lent = sum(any(stream.obj is one.obj for one in streams) for stream in taken)
    assert 1 <= lent <= Spare.MOST // (5 << 20)
