"""BLAKE3 (unkeyed, 32 bytes of output) in plain Python. Slow and short.

The specification is at https://github.com/BLAKE3-team/BLAKE3-specs.
"""

MASK = 0xFFFFFFFF
IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
CHUNK_START, CHUNK_END, PARENT, ROOT = 1, 2, 4, 8
BLOCK_LEN, CHUNK_LEN = 64, 1024


def _g(s, a, b, c, d, mx, my):
    s[a] = (s[a] + s[b] + mx) & MASK
    x = s[d] ^ s[a]
    s[d] = (x >> 16 | x << 16) & MASK
    s[c] = (s[c] + s[d]) & MASK
    x = s[b] ^ s[c]
    s[b] = (x >> 12 | x << 20) & MASK
    s[a] = (s[a] + s[b] + my) & MASK
    x = s[d] ^ s[a]
    s[d] = (x >> 8 | x << 24) & MASK
    s[c] = (s[c] + s[d]) & MASK
    x = s[b] ^ s[c]
    s[b] = (x >> 7 | x << 25) & MASK


def _compress(cv, block, counter, length, flags):
    s = list(cv) + list(IV[:4]) + [counter & MASK, counter >> 32 & MASK, length, flags]
    m = [int.from_bytes(block[4 * i:4 * i + 4], "little") for i in range(16)]
    for r in range(7):
        _g(s, 0, 4, 8, 12, m[0], m[1])
        _g(s, 1, 5, 9, 13, m[2], m[3])
        _g(s, 2, 6, 10, 14, m[4], m[5])
        _g(s, 3, 7, 11, 15, m[6], m[7])
        _g(s, 0, 5, 10, 15, m[8], m[9])
        _g(s, 1, 6, 11, 12, m[10], m[11])
        _g(s, 2, 7, 8, 13, m[12], m[13])
        _g(s, 3, 4, 9, 14, m[14], m[15])
        if r < 6:
            m = [m[p] for p in PERMUTATION]
    return tuple(s[i] ^ s[i + 8] for i in range(8))


def _chunk(data, counter, root):
    cv = IV
    blocks = [data[i:i + BLOCK_LEN] for i in range(0, len(data), BLOCK_LEN)] or [b""]
    for i, block in enumerate(blocks):
        flags = 0
        if i == 0:
            flags |= CHUNK_START
        if i == len(blocks) - 1:
            flags |= CHUNK_END | (ROOT if root else 0)
        cv = _compress(cv, block.ljust(BLOCK_LEN, b"\0"), counter, len(block), flags)
    return cv


def _words(cv):
    return b"".join(w.to_bytes(4, "little") for w in cv)


def _tree(data, counter, root):
    if len(data) <= CHUNK_LEN:
        return _chunk(data, counter, root)
    chunks = (len(data) - 1) // CHUNK_LEN           # one byte or more is left for the right side
    left = CHUNK_LEN << (chunks.bit_length() - 1)
    right = _tree(data[left:], counter + left // CHUNK_LEN, False)
    pair = _words(_tree(data[:left], counter, False)) + _words(right)
    return _compress(IV, pair, 0, BLOCK_LEN, PARENT | (ROOT if root else 0))


def blake3(data):
    """Returns the 32-byte hash of `data`."""
    return _words(_tree(bytes(data), 0, True))
