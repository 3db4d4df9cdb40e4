"""Tests of the decoder; the only encoder is the few functions in this file.

    python3 -m unittest test_decoder
"""

import os
import random
import struct
import sys
import unittest
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import decoder as d  # noqa: E402
from blake3 import blake3  # noqa: E402

v = d.varint_bytes


def reader(data):
    return d.Reader(bytes(data), 0, len(data))


def budget():
    return d.Budget(d.LIMITS)


def text(s):
    raw = s.encode()
    return v(len(raw)) + raw


def plane(fields):
    """Returns a bit plane of (value, width) fields."""
    value = at = 0
    for x, width in fields:
        value |= x << at
        at += width
    return value.to_bytes((at + 7) // 8, "little")


def table(freq, rest):
    """Returns the frequency table of `freq`, which maps symbols to representable frequencies: section 7.2."""
    first, last = min(freq), max(freq)
    fields = [(first, 8), (last - first, 8), (rest - first, 8)]
    for s in range(first, last + 1):
        f = freq.get(s, 0)
        if s == rest:
            continue
        if f == 0:
            fields.append((0, 4))
            continue
        e = f.bit_length() - 1
        y, rem = divmod(f - (1 << e), 1 << (e - min(e, 3)))
        assert rem == 0
        fields += [(e + 1, 4), (y, min(e, 3))]
    return plane(fields)


def rans(symbols, freq, lanes_log):
    """Encodes `symbols` and returns the states and the words: section 7.3."""
    starts, total = {}, 0
    for s in sorted(freq):
        starts[s], total = total, total + freq[s]
    assert total == 4096
    states, words = [1 << 16] * (1 << lanes_log), []
    for i in range(len(symbols) - 1, -1, -1):
        s, lane = symbols[i], i % (1 << lanes_log)
        x = states[lane]
        if x >= freq[s] << 20:
            words.append(x & 0xFFFF)
            x >>= 16
        states[lane] = x // freq[s] * 4096 + starts[s] + x % freq[s]
    return states, words[::-1]


def segment(symbols, freq, lanes_log, raw=b"", shared=None, rest=None):
    states, words = rans(symbols, freq, lanes_log)
    head = v(0) + table(freq, max(freq, key=freq.get) if rest is None else rest) if shared is None else v(shared)
    return (head + bytes([lanes_log]) + v(len(words)) + b"".join(struct.pack("<I", x) for x in states)
            + b"".join(struct.pack("<H", w) for w in words) + raw)


def token(x):
    if x < 2:
        return x, []
    e = x.bit_length() - 1
    return 2 * e + (x >> (e - 1) & 1), [(x & ((1 << (e - 1)) - 1), e - 1)] if e > 1 else []


# A stream

def frame(kind, body, flags=0):
    head = b"\xd3gcf" + struct.pack("<HHQI", kind, flags, len(body), zlib.crc32(body))
    return head + struct.pack("<I", zlib.crc32(head)) + body


def stream(*frames):
    """Returns a stream of `frames`, with preamble and end frame."""
    pre = b"\x89GCU\r\n\x1a\n" + bytes([1, 0, 0, 0])
    chain = 0
    for f in frames:
        chain = zlib.crc32(f[:20], chain)
    end = struct.pack("<QQI", len(frames), 0, chain) + b"GCUE"
    return pre + struct.pack("<I", zlib.crc32(pre)) + b"".join(frames) + frame(5, end)


def manifest(*tensors):
    """Returns the body of a manifest. A tensor is (name, dtype id, shape), or the same and a matrix view."""
    body, previous = v(len(tensors)), b""
    for name, dtype, shape, *matrix in tensors:
        raw = name.encode()
        p = len(os.path.commonprefix([raw, previous]))
        body += v(p) + v(len(raw) - p) + raw[p:] + bytes([dtype]) + v(len(shape)) + b"".join(map(v, shape))
        body += b"".join([b"\1", *map(v, matrix[0])]) if matrix else b"\0"
        previous = raw
    return body


def block(scope, support_id, support, values_id, values):
    body = scope + v(support_id) + v(values_id) + v(len(support)) + support + values
    return v(len(body)) + body


def update(man, blocks, part=0, step=0, attributes=b"\0", tables=()):
    return (blake3(man) + v(step) + b"\0" * 6 + v(part) + attributes + v(len(tables)) + b"".join(tables)
            + v(len(blocks)) + b"".join(blocks))


MAN = manifest(("layer.a", 2, [4]), ("layer.b", 4, [2, 3]))
CONSTANT = b"\0\x02" + struct.pack("<f", -1.5)


class Case(unittest.TestCase):
    def refuses(self, kind, call, *args):
        with self.assertRaises(d.FormatError) as caught:
            call(*args)
        self.assertEqual(caught.exception.kind, kind, str(caught.exception))


class Conventions(Case):
    def test_varint(self):
        for x in (0, 1, 127, 128, 300, 2**32, 2**63, 2**64 - 1):
            self.assertEqual(reader(v(x)).varint(), x)
        for bad in ("8000", "ff00", "ffffffffffffffffff02", "ffffffffffffffffffff01", "80808080808080808000"):
            self.refuses("bad_varint", reader(bytes.fromhex(bad)).varint)
        self.refuses("length_mismatch", reader(b"\x80").varint)

    def test_text_and_padding(self):
        self.assertEqual(reader(text("größe")).text(), "größe")
        self.refuses("invalid_utf8", reader(b"\x01\xff").text)
        self.refuses("invalid_utf8", reader(b"\x03\xed\xa0\x80").text)
        self.refuses("nonzero_padding", reader(b"\x08").plane, 3)
        self.assertEqual([reader(b"\xb5\x01").plane(9).field(9)], [0x1B5])

    def test_zigzag(self):
        self.assertEqual([d.unzigzag(u) for u in range(6)], [0, -1, 1, -2, 2, -3])

    def test_crc(self):
        self.assertEqual(zlib.crc32(b"123456789"), 0xCBF43926)

    def test_blake3(self):
        data = bytes(i % 251 for i in range(102400))
        known = {0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
                 1025: "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
                 2049: "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030",
                 102400: "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085"}
        for length, want in known.items():
            self.assertEqual(blake3(data[:length]).hex(), want)
        self.assertEqual(blake3(b"abc").hex(), "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85")

    def test_philox(self):
        self.assertEqual(d.philox((0,) * 4, (0,) * 2), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8])
        ones = 0xFFFFFFFF
        self.assertEqual(d.philox((ones,) * 4, (ones,) * 2), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD])


class Numbers(Case):
    def test_f32(self):
        rng = random.Random(1)
        for _ in range(20000):
            x = struct.unpack("<d", rng.getrandbits(64).to_bytes(8, "little"))[0]
            if rng.random() < 0.7:
                x = rng.uniform(-2, 2) * 2.0 ** rng.randint(-155, 130)
            if x != x:
                continue
            try:
                want = struct.unpack("<I", struct.pack("<f", x))[0]
            except OverflowError:
                want = 0x7F800000 | (x < 0) << 31
            self.assertEqual(d.to_number(x), want, x)
        self.assertEqual(d.to_number(-0.0), 0x80000000)
        self.assertEqual(d.to_number(2.0 ** -150), 0)
        self.assertEqual(d.to_number(float("nan")), 0x7FC00000)
        self.assertEqual(d.to_number(3.4028235677973366e38), 0x7F800000)       # half a step above the maximum
        self.assertEqual(d.to_number(3.4028235677973362e38), 0x7F7FFFFF)

    def test_f16(self):
        for code in range(1 << 16):
            number = d.convert("f16", "f32", code)
            if code & 0x7FFF <= 0x7C00:
                self.assertEqual(number, struct.unpack("<I", struct.pack("<f", struct.unpack("<e", struct.pack("<H", code))[0]))[0])
                self.assertEqual(d.convert("f32", "f16", number), code)
            else:
                self.assertEqual(d.convert("f32", "f16", number), code | 0x200)

    def test_small(self):
        f = lambda x: struct.unpack("<I", struct.pack("<f", x))[0]
        for kind in ("f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "f4e2m1"):
            for code in range(1 << d.BITS[kind]):
                back = d.convert("f32", kind, d.convert(kind, "f32", code))
                self.assertEqual(back, code if not (kind == "f8e5m2" and code & 0x7F == 0x7D) else code | 2)
        cases = [("f8e4m3fn", 448, 0x7E), ("f8e4m3fn", 464, 0x7E), ("f8e4m3fn", 465, 0x7F), ("f8e4m3fn", -1e9, 0xFF),
                 ("f8e4m3fnuz", 247, 0x7F), ("f8e4m3fnuz", 248, 0x80), ("f8e4m3fnuz", -0.0, 0), ("f8e4m3fnuz", -1e-9, 0),
                 ("f8e5m2", 61439, 0x7B), ("f8e5m2", 61440, 0x7C), ("f8e5m2fnuz", 57344, 0x7F), ("f8e5m2fnuz", 1e9, 0x80),
                 ("f4e2m1", 1e9, 7), ("f4e2m1", -1e9, 15), ("f4e2m1", 0.25, 0), ("f4e2m1", 0.75, 2), ("f4e2m1", 5, 6),
                 ("bf16", 1 + 2 ** -8, 0x3F80), ("bf16", 1 + 3 * 2 ** -8, 0x3F82)]
        for kind, x, want in cases:
            self.assertEqual(d.convert("f32", kind, f(x)), want, (kind, x))
        self.assertEqual(d.convert("f32", "f64", f(-1.25)), struct.unpack("<Q", struct.pack("<d", -1.25))[0])
        self.assertEqual(d.convert("f32", "bf16", 0xFF800001), 0xFFC0)
        self.assertEqual([d.to_double("int8", c) for c in (64, 128, 255)], [1.0, -2.0, -1 / 64])
        self.assertEqual([d.to_double("f4e3m0", c) for c in range(9)], [0, .25, .5, 1, 2, 4, 8, 16, 0])
        self.assertEqual(d.to_double("f6e3m2", 0x1F), 28.0)
        self.assertEqual(d.to_double("f6e2m3", 0x1F), 7.5)
        self.assertEqual(d.stored_number("e8m0", 0), 0x00400000)

    def test_ulp_order(self):
        for u in range(256):
            self.assertEqual(d.ulp_unorder(d.ulp_order(u, 8, True), 8, True), u)
        self.assertEqual(d.ulp_order(0x00, 8, True) - d.ulp_order(0x80, 8, True), 1)


class Codes(Case):
    def test_tokens(self):
        self.assertEqual([token(x)[0] for x in range(8)], [0, 1, 2, 3, 4, 4, 5, 5])
        self.assertEqual(token(2**64 - 1)[0], 127)

    def test_table(self):
        t = d.Table(reader(bytes([7, 0, 0])))
        self.assertEqual((t.freq[7], t.owner[0], t.owner[4095]), (4096, 7, 7))
        # symbols 1, 2, 4: 40, rest, 1000 -> 3 has none
        freq = {1: 40, 2: 4096 - 1040 + 16, 4: 1024}
        freq[2] = 4096 - 40 - 1024
        t = d.Table(reader(table(freq, 2)))
        self.assertEqual({s: f for s, f in enumerate(t.freq) if f}, freq)
        self.assertEqual((t.start[2], t.start[4], t.owner[39], t.owner[40], t.owner[3072]), (40, 3072, 1, 2, 4))
        for fields in ([(200, 8), (56, 8), (0, 8)], [(0, 8), (1, 8), (2, 8)],            # TAB-1
                       [(0, 8), (1, 8), (0, 8), (13, 4)],                                # TAB-2
                       [(0, 8), (2, 8), (0, 8), (12, 4), (7, 3), (12, 4), (7, 3)],       # TAB-2
                       [(0, 8), (1, 8), (0, 8), (0, 4)], [(0, 8), (1, 8), (1, 8), (0, 4)]):      # TAB-3
            self.refuses("bad_table", d.Table, reader(plane(fields)))
        self.refuses("nonzero_padding", d.Table, reader(plane([(0, 8), (1, 8), (0, 8), (1, 4), (1, 1)])))

    FREQ = {0: 2048, 1: 1024, 3: 896, 9: 128}

    def test_rans(self):
        rng = random.Random(2)
        for lanes_log in (0, 2, 5):
            for count in (1, 2, 7, 500):
                symbols = rng.choices(list(self.FREQ), list(self.FREQ.values()), k=count)
                data = bytes([2, 0]) + segment(symbols, self.FREQ, lanes_log)
                r = reader(data)
                self.assertEqual(d.ints(r, count, [], budget()), symbols)
                r.finish()
        symbols = [0, 1, 3, 9] * 100
        good = segment(symbols, self.FREQ, 2)
        at = len(v(0) + table(self.FREQ, 0)) + 1 + len(v(len(rans(symbols, self.FREQ, 2)[1])))
        for change in (good[:at] + b"\xff\xff\0\0" + good[at + 4:], good[:-2] + bytes([good[-2] ^ 1, good[-1]])):
            self.refuses("bad_code", d.segment, reader(change), 400, False, [])
        self.refuses("bad_code", d.segment, reader(good), 399, False, [])

    def test_token_stream(self):
        rng = random.Random(3)
        numbers = [rng.getrandbits(rng.randint(0, 64)) for _ in range(300)] + [2**64 - 1, 0]
        tokens = [token(x) for x in numbers]
        freq = {s: 16 for s in {t for t, _ in tokens}}
        rest = min(freq)
        freq[rest] = 4096 - 16 * (len(freq) - 1)
        raw = plane([f for _, fields in tokens for f in fields])
        data = bytes([1, 0]) + segment([t for t, _ in tokens], freq, 0, raw, rest=rest)
        self.assertEqual(d.ints(reader(data), len(numbers), [], budget()), numbers)
        bad = segment([128], {128: 4096}, 0)
        self.refuses("out_of_range", d.segment, reader(bad), 1, True, [])

    def test_segments_and_shared_table(self):
        numbers = [i % 2 for i in range(1500)]
        freq = {0: 2048, 1: 2048}
        parts = [segment(numbers[i:i + 1024], freq, 0, shared=1) for i in (0, 1024)]
        data = bytes([1, 10]) + b"".join(v(len(p)) + p for p in parts)
        tables = [d.Table(reader(table(freq, 0)))]
        self.assertEqual(d.ints(reader(data), 1500, tables, budget()), numbers)
        self.refuses("unknown_reference", d.ints, reader(data), 1500, [], budget())
        self.refuses("not_canonical", d.ints, reader(data), 1024, tables, budget())

    def test_packed(self):
        self.assertEqual(d.ints(reader(b"\0\x03" + plane([(5, 3), (0, 3), (7, 3)])), 3, [], budget()), [5, 0, 7])
        self.assertEqual(d.ints(reader(b""), 0, [], budget()), [])
        self.refuses("length_mismatch", d.ints, reader(b"\0\x40"), 1 << 60, [], budget())
        self.refuses("limit", d.ints, reader(b"\0\0"), 1 << 60, [], budget())
        self.refuses("out_of_range", d.ints, reader(b"\0\x03\x07"), 1, [], budget(), 6)

    def test_referenced(self):
        want = [(10 * (i // 3) + i % 3) % 256 for i in range(7)]
        rows, columns, left = [0, 10, 20], [0, 1, 2], [0] * 7
        def sym(symbols):
            kinds = sorted(set(symbols))
            freq = {s: 64 for s in kinds}
            freq[kinds[0]] += 4096 - 64 * len(kinds)
            return b"\0" + segment(symbols, freq, 0, rest=kinds[0])
        data = bytes([3, 3, 1]) + sym(rows) + sym(columns) + sym(left)
        self.assertEqual(d.ints(reader(data), 7, [], budget()), want)
        data = bytes([3, 7, 2]) + sym([254]) + sym([0, 1, 2, 255, 0, 0, 0])
        self.assertEqual(d.ints(reader(data), 7, [], budget()), [0, 255, 1, 254, 0, 0, 0])
        data = bytes([3, 7, 2]) + sym([255]) + sym([0] * 7)
        self.refuses("out_of_range", d.ints, reader(data), 7, [], budget())

    def test_joined(self):
        freq = {0: 1024, 0x21: 1024, 0x53: 1024, 0xc3: 1024}
        def of(per, symbols):
            return bytes([4, per, 0]) + segment(symbols, freq, 0, rest=0)
        cases = [(2, [0x21, 0x53, 0], [1, 2, 3, 5, 0]), (4, [0xc3, 0x21], [3, 0, 0, 3, 1, 0, 2]),
                 (8, [0xc3, 0], [1, 1, 0, 0, 0, 0, 1, 1, 0])]
        for per, symbols, numbers in cases:
            self.assertEqual(d.ints(reader(of(per, symbols)), len(numbers), [], budget()), numbers)
        self.refuses("nonzero_padding", d.ints, reader(of(2, [0, 0x21])), 3, [], budget())
        self.refuses("out_of_range", d.ints, reader(of(2, [0x53])), 2, [], budget(), 4)
        for per in (0, 1, 3, 16):
            self.refuses("out_of_range", d.ints, reader(of(per, [0])), 1, [], budget())

    def test_tree(self):
        # 2 and 5 are joined first; 7 is as heavy as both and comes before them: 9 is 1, 7 is 00, 2 is 010, 5
        # is 011.
        freq = {2: 256, 5: 256, 7: 512, 9: 3072}
        head = bytes([5, 2, 0]) + v(0) + table(freq, 9)
        def of(*blocks):
            return head + v(sum(map(len, blocks))) + b"".join(blocks)
        symbols = [9, 2, 7, 9, 9, 5, 9, 9, 9]
        planes = bytes([0b11011001, 0b1, 0b101, 0b10])
        self.assertEqual(d.ints(reader(of(planes)), 9, [], budget()), symbols)
        # Only the root has bits if all symbols are 9; a new block begins after 2^15 of them.
        self.assertEqual(d.ints(reader(of(b"\xff" * 4096, b"\x01")), (1 << 15) + 1, [], budget()),
                         [9] * ((1 << 15) + 1))
        shared = d.Table(reader(table(freq, 9)))
        self.assertEqual(d.ints(reader(bytes([5, 2, 0]) + v(1) + v(4) + planes), 9, [shared], budget()), symbols)
        one = bytes([5, 2, 0]) + v(0) + table({7: 4096}, 7)
        self.assertEqual(d.ints(reader(one + v(0)), 100_000, [], budget()), [7] * 100_000)
        # Referenced: rows of four, whose reference is 1.
        rows = b"\0" + segment([1] * 3, {1: 4096}, 0)
        inner = bytes([5, 3, 4, 0]) + rows + head[2:] + v(4) + planes
        self.assertEqual(d.ints(reader(inner), 9, [], budget()), [s + 1 for s in symbols])
        for wrong in (planes[:3], planes + b"\0", b""):
            self.refuses("bad_code", d.ints, reader(of(wrong)), 9, [], budget())
        self.refuses("bad_code", d.ints, reader(one + v(1) + b"\0"), 1, [], budget())
        self.refuses("length_mismatch", d.ints, reader(head + v(5) + planes), 9, [], budget())
        for plane, byte in ((1, 0b11), (2, 0b1101), (3, 0b110)):
            padded = bytearray(planes)
            padded[plane] = byte
            self.refuses("nonzero_padding", d.ints, reader(of(bytes(padded))), 9, [], budget())
        self.refuses("out_of_range", d.ints, reader(of(planes)), 9, [], budget(), 8)
        for inner in (0, 1, 4, 5):
            self.refuses("out_of_range", d.ints, reader(bytes([5, inner]) + head[2:] + v(4) + planes), 9, [],
                         budget())

    def test_rice(self):
        gaps, k = [0, 5, 17, 2, 40], 2
        def run(gaps, k):
            return plane([(g & ((1 << k) - 1), k) for g in gaps]), plane([(1 << (g >> k), (g >> k) + 1) for g in gaps])
        low, unary = run(gaps, k)
        positions = [0, 6, 24, 27, 68]
        data = v(5) + bytes([0, k]) + low + unary
        self.assertEqual(d.support_rice(reader(data), 69, None), positions)
        self.refuses("position_out_of_range", d.support_rice, reader(data), 68, None)
        self.refuses("count_mismatch", d.support_rice, reader(data), 4, None)
        self.refuses("length_mismatch", d.support_rice, reader(data + b"\0"), 69, None)
        self.refuses("length_mismatch", d.support_rice, reader(data[:-1]), 69, None)
        gaps = [i % 5 for i in range(200)]
        halves = [run(gaps[:128], 1), run(gaps[128:], 1)]
        spans = [sum(gaps[:128]) + 128, sum(gaps[128:]) + 72]
        head = v(200) + b"\x07" + b"".join(b"\1" + v(len(u)) + v(s) for (_, u), s in zip(halves, spans))
        data = head + b"".join(a + b for a, b in halves)
        got = d.support_rice(reader(data), 1000, None)
        self.assertEqual(([got[0]] + [b - a - 1 for a, b in zip(got, got[1:])]), gaps)
        self.refuses("not_canonical", d.support_rice, reader(v(128) + data[2:]), 1000, None)


class Stream(Case):
    def test_minimal(self):
        self.assertEqual(d.decode(stream()), {"frames": [{"kind": "end", "frame_count": 0, "index_offset": 0}]})
        data = stream()
        for cut in range(len(data)):
            self.refuses("truncated", d.decode, data[:cut])
        self.refuses("bad_sync", d.decode, data + b"\0")
        self.refuses("bad_magic", d.decode, b"\0" + data[1:])
        self.refuses("checksum_mismatch", d.decode, data[:9] + b"\1" + data[10:])

    def test_update(self):
        sparse = block(b"\0\1", 4, b"\x21", 1, b"\0" + bytes.fromhex("803fc0bf"))
        ranged = block(b"\x02\0\x01\x02", 1, b"", 2, CONSTANT)
        added = block(b"\x04\0", 1, b"", 2, CONSTANT)
        data = stream(frame(1, MAN), frame(0xF00D, b"private"), frame(2, update(MAN, [ranged, sparse, added]), 1))
        got = d.decode(data)["frames"]
        self.assertEqual([t["name"] for t in got[0]["tensors"]], ["layer.a", "layer.b"])
        self.assertEqual(got[1], {"kind": "skipped", "id": 0xF00D})
        self.assertEqual(got[2]["blocks"][0], {"scope": [2, 0, 1, 2], "support": "all", "values": "constant",
                                               "positions": None, "numbers": ["bfc00000"] * 2})
        self.assertEqual(got[2]["blocks"][1]["numbers"], ["3f80", "bfc0"])
        self.assertEqual(got[2]["blocks"][1]["positions"], [0, 5])
        dense = d.tensors(data)
        self.assertEqual(dense["layer.a"], {"dtype": "f32", "shape": [4], "data": struct.pack("<4f", -1.5, -3, -3, -1.5).hex()})
        self.assertEqual(dense["layer.b"]["data"], "803f" + "0000" * 4 + "c0bf")

    def test_refusals(self):
        one = block(b"\0\0", 1, b"", 2, CONSTANT)
        two = block(b"\0\1", 1, b"", 2, CONSTANT)
        def made(*blocks, flags=1, **more):
            return stream(frame(1, MAN), frame(2, update(MAN, blocks, **more), flags))
        self.assertEqual(len(d.decode(made(one, two))["frames"]), 3)
        for kind, data in [
                ("not_ascending", made(two, one)), ("not_ascending", made(one, one)), ("misplaced", made(one, flags=0)),
                ("misplaced", made(one, part=1)), ("reserved_bits", made(one, flags=3)),
                ("unknown_reference", stream(frame(2, update(MAN, [one]), 1))),
                ("unsupported", made(block(b"\0\0", 0x7fff, b"", 2, CONSTANT))),
                ("unsupported", made(block(b"\0\0", 1, b"", 0x7fff, CONSTANT))),
                ("out_of_range", made(block(b"\0\2", 1, b"", 2, CONSTANT))),
                ("out_of_range", made(block(b"\1\0\2", 1, b"", 2, CONSTANT))),
                ("out_of_range", made(block(b"\4\0", 1, b"", 1, b"\0" + b"\0" * 16))),
                ("unknown_reference", made(block(b"\0\0", 1, b"", 10, b"\0\0"))),
                ("length_mismatch", made(block(b"\0\0", 1, b"", 2, CONSTANT + b"\0"))),
                ("not_ascending", made(one, attributes=b"\2\3\0\3\0")), ("unsupported", made(one, attributes=b"\1\6\0")),
                ("unsupported", stream(frame(6, b""))), ("unsupported", stream(frame(0x7000, b""))),
                ("length_mismatch", stream(frame(1, MAN + b"\0"))),
                ("duplicate_name", stream(frame(1, manifest(("a", 2, []), ("a", 2, [])))))]:
            self.refuses(kind, d.decode, data)
        label = d.decode(made(one, attributes=b"\1\1" + text("top-k")))["frames"][1]["label"]
        self.assertEqual(label, "top-k")
        huge = manifest(("a", 2, [1 << 40]))
        data = stream(frame(1, huge), frame(2, update(huge, [one]), 1))
        self.refuses("limit", d.decode, data)

    def test_parts(self):
        one, two = block(b"\0\0", 1, b"", 2, CONSTANT), block(b"\0\1", 1, b"", 2, CONSTANT)
        parts = [frame(2, update(MAN, [one])), frame(2, update(MAN, [two], part=1), 1)]
        data = stream(frame(1, MAN), *parts)
        self.assertEqual(d.tensors(data)["layer.b"]["data"], "c0bf" * 6)
        self.refuses("misplaced", d.decode, stream(frame(1, MAN), parts[1], parts[0]))
        other = frame(2, update(MAN, [two], part=1, step=1), 1)
        self.refuses("misplaced", d.decode, stream(frame(1, MAN), parts[0], other))
        self.refuses("not_ascending", d.decode,
                     stream(frame(1, MAN), parts[0], frame(2, update(MAN, [one], part=1), 1)))

    def test_delta(self):
        man = manifest(("w", 4, [3]))
        tensor = d.Tensor("w", "bf16", [3], None, None)
        base, result = [0x3F80, 0x0000, 0xBF80], [0x3F81, 0x8000, 0xBF80]
        body = v(1) + v(0) + v(0) + d.tensor_digest(tensor, base) + d.tensor_digest(tensor, result)
        attributes = v(1) + v(2) + v(len(body)) + body
        # 1.0 goes one step up; from +0 to -0 is one step down
        made = block(b"\0\0", 1, b"", 10, b"\0\x02" + plane([(2, 2), (1, 2), (0, 2)]))
        data = stream(frame(1, man), frame(2, update(man, [made], attributes=attributes), 1))
        given = {"w": {"dtype": "bf16", "shape": [3], "data": d.pack(tensor, base).hex()}}
        self.assertEqual(d.tensors(data, base=given)["w"]["data"], d.pack(tensor, result).hex())
        given["w"]["data"] = d.pack(tensor, result).hex()
        self.refuses("checksum_mismatch", lambda: d.tensors(data, base=given))

    def test_index(self):
        one = block(b"\0\0", 1, b"", 2, CONSTANT)
        body = update(MAN, [one])
        frames = [frame(1, MAN), frame(2, body, 1)]
        head = body[:-len(one)]
        listing = (v(2) + b"".join(v(k) + v(len(f)) for k, f in zip((1, 2), frames)) + v(0) + v(0) + v(len(head))
                   + struct.pack("<I", zlib.crc32(head)) + v(1) + v(0) + v(1) + v(len(one)) + struct.pack("<I", zlib.crc32(one)))
        def made(listing, shift=0):
            whole = stream(*frames, frame(0x8002, listing))
            at = 16 + sum(map(len, frames)) + shift
            end = whole[-24:-16] + struct.pack("<Q", at) + whole[-8:]
            return whole[:-48] + frame(5, end)
        got = d.decode(made(listing))["frames"]
        self.assertEqual(got[2], {"kind": "index", "frames": [[1, len(frames[0])], [2, len(frames[1])]]})
        self.refuses("not_canonical", d.decode, made(b"\2\1\0" + listing[3:]))
        self.refuses("out_of_range", d.decode, made(listing, 1))

    def test_metadata_and_models(self):
        good = b"\0" + v(2) + text("a") + text("x") + text("b") + text("")
        self.assertEqual(d.decode(stream(frame(0x8001, good)))["frames"][0]["entries"], {"a": "x", "b": ""})
        bad = b"\0" + v(2) + text("b") + text("x") + text("a") + text("")
        self.refuses("not_ascending", d.decode, stream(frame(0x8001, bad)))
        model = blake3(b"weights") + text("f") + text("n") + v(7) + b"\1weights"
        self.assertEqual(d.decode(stream(frame(4, model)))["frames"][0]["weights_len"], 7)
        self.refuses("not_canonical", d.decode, stream(frame(4, model[:-1] + b"S")))

    def test_without_zstd(self):
        found, d.zstd = d.zstd, None
        self.addCleanup(setattr, d, "zstd", found)
        self.refuses("unsupported_here", d.decode, stream(frame(0x8001, b"\1\5rest")))

    @unittest.skipUnless(d.zstd, "zstd needs Python 3.14 or backports.zstd")
    def test_zstd(self):
        entries = v(2) + text("a") + text("x" * 90) + text("b") + text("")
        magic, raw = bytes.fromhex("28b52ffd"), (len(entries) << 3 | 1).to_bytes(3, "little") + entries
        single = magic + bytes([0x20, len(entries)]) + raw              # RFC 8878, 3.1.1: one raw block
        def made(zstd, length=len(entries)):
            return stream(frame(0x8001, b"\1" + v(length) + zstd))
        def windowed(exponent, mantissa):
            return magic + bytes([0, exponent << 3 | mantissa]) + raw
        want = {"a": "x" * 90, "b": ""}
        for good in (single, windowed(0, 0), windowed(17, 7), d.zstd.compress(entries)):
            self.assertEqual(d.decode(made(good))["frames"][0]["entries"], want)
        for kind, data in [
                ("length_mismatch", made(single + b"\0")), ("length_mismatch", made(single[:-1])),
                ("length_mismatch", made(single, len(entries) + 1)), ("length_mismatch", made(single, len(entries) - 1)),
                ("length_mismatch", made(b"")), ("length_mismatch", made(magic)), ("length_mismatch", made(b"\0" * 9)),
                ("length_mismatch", made(bytes.fromhex("502a4d18") + v(4) + bytes(7) + single)),
                ("limit", made(windowed(18, 1))), ("limit", made(windowed(31, 7))), ("limit", made(single, 1 << 40))]:
            self.refuses(kind, d.decode, data)
        # The limit applies to the window, exactly: 1 MiB and an eighth.
        limit = {"max_inflated_bytes": (1 << 20) + (1 << 17)}
        self.assertEqual(d.decode(made(windowed(10, 1)), limit)["frames"][0]["entries"], want)
        self.refuses("limit", d.decode, made(windowed(10, 2)), limit)
        self.refuses("limit", d.decode, made(windowed(10, 1)), {"max_inflated_bytes": limit["max_inflated_bytes"] - 1})
        # An error inside is reported at the start of the zstd frame.
        bad = d.zstd.compress(v(1) + text("a"))
        with self.assertRaises(d.FormatError) as caught:
            d.decode(made(bad, 3))
        self.assertEqual((caught.exception.kind, caught.exception.offset), ("length_mismatch", 16 + 24 + 2))
        weights = b"weights " * 40
        def model(weights_len, zstd, identity=blake3(weights)):
            return stream(frame(4, identity + text("f") + text("n") + v(weights_len) + b"\2" + zstd))
        packed = d.zstd.compress(weights)
        self.assertEqual(d.decode(model(320, packed))["frames"][0]["weights_len"], 320)
        self.refuses("not_canonical", d.decode, model(320, packed, bytes(32)))
        self.refuses("length_mismatch", d.decode, model(319, packed))

    def test_sets(self):
        scope = b"\0\1"
        body = blake3(MAN) + b"\0\0\0" + scope + v(4) + b"\x21"
        use = block(scope, 8, blake3(body), 2, CONSTANT)
        data = stream(frame(1, MAN), frame(3, body), frame(2, update(MAN, [use]), 1))
        self.assertEqual(d.decode(data)["frames"][2]["blocks"][0]["positions"], [0, 5])
        use = block(b"\0\0", 8, blake3(body), 2, CONSTANT)
        self.refuses("count_mismatch", d.decode, stream(frame(1, MAN), frame(3, body), frame(2, update(MAN, [use]), 1)))

    def test_values(self):
        man = manifest(("w", 2, [4]))
        def numbers(values_id, values, n=4):
            data = stream(frame(1, man), frame(2, update(man, [block(b"\0\0", 1, b"", values_id, values)]), 1))
            return d.decode(data)["frames"][1]["blocks"][0]["numbers"]
        def floats(*xs):
            return [f"{struct.unpack('<I', struct.pack('<f', x))[0]:08x}" for x in xs]
        two = b"\0\x02" + struct.pack("<f", 2.0)                 # groups 0, scale 2.0
        codes = b"\0\x02" + plane([(0, 2), (1, 2), (2, 2), (3, 2)])
        self.assertEqual(numbers(3, two + b"\0\x05"), floats(-2, 2, -2, 2))
        self.assertEqual(numbers(4, struct.pack("<hB", -1, 0) + codes + b"\0\x04"), floats(0, .5, 1, -2))
        self.assertEqual(numbers(5, b"\0\3\2" + two + codes), floats(0, 2 * -1 / 3, 2 / 3, 2 * -2 / 3))
        self.assertEqual(numbers(5, b"\1\3\2" + two + codes), floats(0, -.5, .5, -1))
        self.assertEqual(numbers(6, b"\2\0" + two + codes), floats(-4, -2, 0, 2))
        self.assertEqual(numbers(6, b"\2\1" + two + b"\1" + codes), floats(-2, 0, 2, 4))
        self.assertEqual(numbers(6, b"\2\2" + two + b"\x02" + struct.pack("<f", .5) + codes), floats(.5, 2.5, 4.5, 6.5))
        self.assertEqual(numbers(7, b"\3" + struct.pack("<4f", 1, 2, 3, 4) + b"\1" + two + codes), floats(2, 4, 6, 8))
        self.assertEqual(numbers(8, b"\x09" + two + codes), floats(0, 1, 2, 3))
        planes = [struct.unpack("<I", struct.pack("<f", x))[0] for x in (1, -2, .5, 3)]
        rotated = [x << 1 & 0xFFFFFFFF | x >> 31 for x in planes]
        data = b"".join(b"\0" + bytes(x >> 8 * i & 255 for x in rotated) for i in range(4))
        self.assertEqual(numbers(9, data), floats(1, -2, .5, 3))
        p, q = b"\x02" + struct.pack("<2f", 1, 2), b"\x02" + struct.pack("<2f", 3, 4)
        self.assertEqual(numbers(12, b"\2\2\1\1" + v(len(p)) + p + b"\1" + q), floats(3, 4, 6, 8))
        latent = bytes(32) + b"\1\2\1\x02" + struct.pack("<2f", 3, 4)
        self.assertEqual(numbers(11, latent), {"model": "00" * 32, "shape": [2], "codes": floats(3, 4)})

    def test_supports(self):
        man = manifest(("w", 2, [12]))
        def positions(support_id, support):
            data = stream(frame(1, man), frame(2, update(man, [block(b"\0\0", support_id, support, 2, CONSTANT)]), 1))
            return d.decode(data)["frames"][1]["blocks"][0]["positions"]
        self.assertIsNone(positions(1, b""))
        self.assertEqual(positions(2, b"\0"), [])
        self.assertEqual(positions(5, b"\5\2" + plane([(0, 3), (4, 3), (1, 3), (2, 3), (0, 3), (1, 3)])), [0, 4, 6, 7, 10, 11])
        self.assertEqual(positions(6, b"\3\4\5"), [0, 1, 2, 6, 7, 8])
        seeded = positions(7, b"\4" + struct.pack("<Q", 7))
        self.assertEqual(len(set(seeded)), 4)
        self.assertEqual(positions(7, b"\x0c" + struct.pack("<Q", 7)), list(range(12)))
        tokens = segment([0, 1, 2], {0: 2048, 1: 1024, 2: 1024}, 0)
        self.assertEqual(positions(3, b"\3\0" + tokens), [0, 2, 5])
        for kind, support_id, support in [
                ("not_ascending", 5, b"\5\2" + plane([(4, 3), (4, 3), (1, 3), (2, 3), (0, 3), (1, 3)])),
                ("position_out_of_range", 5, b"\5\2" + plane([(0, 3), (5, 3), (1, 3), (2, 3), (0, 3), (1, 3)])),
                ("out_of_range", 6, b"\5\4\1"), ("out_of_range", 6, b"\3\5\1"), ("length_mismatch", 1, b"\0"),
                ("count_mismatch", 7, b"\x0d" + bytes(8)), ("length_mismatch", 4, b"\0"), ("nonzero_padding", 4, b"\0\x10")]:
            self.refuses(kind, positions, support_id, support)

    def test_cosines_have_the_hash_on_the_page(self):
        numbers = [x for n in range(1, 129) for x in d.dct_numbers(n)]
        self.assertEqual(len(numbers), 8384)
        page = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "values", "dct.md")
        with open(page, encoding="utf-8") as f:
            self.assertIn(blake3(struct.pack("<8384d", *numbers)).hex(), f.read())

    def test_transform_of_one_chunk(self):
        man = manifest(("w", 2, [2, 2]))
        values = v(2) + v(2) + v(2) + v(2) + v(1) + v(0) + v(1) + b"\2" + struct.pack("<4f", 4, 0, 2, 0)
        data = stream(frame(1, man), frame(2, update(man, [block(b"\0\0", 1, b"", 13, values)]), 1))
        # Coefficient (0, 0) is twice the mean; (1, 0) is the difference between the two rows.
        out = d.decode(data)["frames"][1]["blocks"][0]["numbers"]
        self.assertEqual([struct.unpack(">f", bytes.fromhex(x))[0] for x in out], [3.0, 3.0, 1.0, 1.0])


def load_tests(loader, tests, pattern):
    """Adds the tests of the other file to those of this one."""
    tests.addTests(loader.loadTestsFromName("test_classed"))
    return tests


if __name__ == "__main__":
    unittest.main()
