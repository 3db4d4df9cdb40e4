#!/usr/bin/env python3
"""A reference decoder of the gcodec wire format, written from the text in `spec/` alone.

It is slow on purpose. It follows the order of `gcodec.md`, and each check names its requirement.

    python3 decoder.py FILE              prints the stream as JSON
    python3 decoder.py --tensors FILE    prints the dense tensors after the last update
    python3 decoder.py --vectors DIR     runs DIR/index.json

`--profile core` makes it a reader of the core profile (core.md), which refuses all else.

Needs Python 3.11 or later and only its standard library, which contains zstd from Python 3.14. For earlier
versions the package `backports.zstd` has the same module. Without either, a frame that holds zstd gives
`unsupported_here`.
"""

import argparse
import bisect
import collections
import functools
import heapq
import itertools
import json
import math
import os
import sys
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from blake3 import blake3  # noqa: E402

try:
    from compression import zstd  # Python 3.14
except ImportError:
    try:
        from backports import zstd
    except ImportError:
        zstd = None

LIMITS = {                            # [LIM-1]; the values are this reader's choice
    "max_frame_bytes": 1 << 30,       # bytes of a body
    "max_tensors": 1 << 20,           # tensors of a manifest
    "max_elements": 1 << 26,          # elements of an update part (or an index set), as LIM-3 charges them
    "max_alloc_bytes": 1 << 30,       # memory for declared data beyond the bytes received
    "max_inflated_bytes": 1 << 28,    # decompressed bytes of a zstd frame, its window, the names of a manifest
    "max_blocks": 1 << 20,            # blocks of a part, each counted once for each tensor of its scope
    "max_definitions": 1 << 16,       # remembered definitions of each kind: manifests, index sets, models
}


class FormatError(Exception):
    """A violation of the format. `kind` is the word after the arrow in the text."""

    def __init__(self, kind, offset, what):
        super().__init__(f"{kind} at byte {offset}: {what}")
        self.kind, self.offset, self.what = kind, offset, what


# --------------------------------------------------------------------------------------------- 1. Conventions

def padding(plane, bits, offset):
    """Checks that the bits after the first `bits` bits of `plane` are zero: [CNV-1]."""
    if bits % 8 and plane[-1] >> (bits % 8):
        raise FormatError("nonzero_padding", offset + len(plane) - 1, "padding bits of a plane are not zero")


class Plane:
    """A bit plane, read one field at a time."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def field(self, width):
        first, last = self.at // 8, (self.at + width + 7) // 8
        value = int.from_bytes(self.data[first:last], "little") >> (self.at % 8)
        self.at += width
        return value & ((1 << width) - 1)


class Reader:
    """A structure of declared length: the bytes data[at:end] of the stream."""

    def __init__(self, data, at, end):
        self.data, self.at, self.end = data, at, end

    def left(self):
        return self.end - self.at

    def take(self, count):
        if count > self.left():                                                  # [CNV-6] [LIM-2]
            raise FormatError("length_mismatch", self.at, f"{count} bytes needed, {self.left()} left")
        self.at += count
        return self.data[self.at - count:self.at]

    def part(self, length):
        """Returns a reader of the next `length` bytes, a structure inside this one."""
        start = self.at
        if length > self.left():                                                 # [CNV-6]
            raise FormatError("length_mismatch", start, f"a structure of {length} bytes, {self.left()} left")
        self.at += length
        return Reader(self.data, start, start + length)

    def finish(self):
        if self.at != self.end:                                                  # [CNV-6]
            raise FormatError("length_mismatch", self.at, f"{self.left()} bytes left over")

    def uint(self, size):
        return int.from_bytes(self.take(size), "little")

    def u8(self, allowed=None):
        at = self.at
        value = self.uint(1)
        if allowed is not None and value not in allowed:                         # [CNV-4]
            raise FormatError("out_of_range", at, f"{value} is not an allowed value of this field")
        return value

    def flags(self, defined):
        at = self.at
        value = self.uint(1)
        if value & ~defined:                                                     # [CNV-5]
            raise FormatError("reserved_bits", at, f"flags {value:#04x}")
        return value

    def varint(self, low=0, high=(1 << 64) - 1):
        start, value = self.at, 0
        for i in range(10):
            byte = self.uint(1)
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                if byte == 0 and i > 0:                                          # [CNV-2]
                    raise FormatError("bad_varint", start, "more bytes than the value needs")
                break
        else:                                                                    # [CNV-2]
            raise FormatError("bad_varint", start, "more than ten bytes")
        if value >> 64:                                                          # [CNV-2]
            raise FormatError("bad_varint", start, "2^64 or more")
        if not low <= value <= high:                                             # [CNV-4]
            raise FormatError("out_of_range", start, f"{value} is not in {low} .. {high}")
        return value

    def text(self):
        count = self.varint()
        start = self.at
        return utf8(self.take(count), start)

    def plane(self, bits):
        start = self.at
        data = self.take((bits + 7) // 8)
        padding(data, bits, start)
        return Plane(data)


def utf8(data, offset):
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:                                              # [CNV-3]
        raise FormatError("invalid_utf8", offset + e.start, "not UTF-8") from None


def unzigzag(u):
    return u >> 1 if u % 2 == 0 else -(u + 1 >> 1)


# ----------------------------------------------------------------------------------------------- the registry

FRAMES = {1: "manifest", 2: "update", 3: "index_set", 4: "model", 5: "end", 0x8001: "metadata", 0x8002: "index"}
SUPPORTS = {1: "all", 2: "gaps-rice", 3: "gaps-tokens", 4: "bitmap", 5: "chunked", 6: "rows", 7: "seeded", 8: "set",
            9: "classed"}
VALUES = {1: "floats", 2: "constant", 3: "sign", 4: "pow2", 5: "levels", 6: "affine", 7: "codebook", 8: "minifloat",
          9: "planes", 10: "ulp", 11: "latent", 12: "low-rank", 13: "dct"}
CODINGS = {0: "packed", 1: "tokens", 2: "symbols", 3: "referenced", 4: "joined", 5: "tree"}
SIGN_CODINGS = {0: "plane", 1: "predicted"}
ATTRIBUTES = {1: "label", 2: "delta", 4: "sum_delta"}
SCOPE_BITS = {2: "add"}
DTYPES = {1: ("f64", 64), 2: ("f32", 32), 3: ("f16", 16), 4: ("bf16", 16), 5: ("f8e4m3fn", 8), 6: ("f8e5m2", 8),
          7: ("f8e4m3fnuz", 8), 8: ("f8e5m2fnuz", 8), 9: ("f4e2m1", 4), 16: ("i8", 8), 17: ("i16", 16), 18: ("i32", 32),
          19: ("i64", 64), 24: ("u8", 8), 25: ("u16", 16), 26: ("u32", 32), 27: ("u64", 64), 32: ("bool", 8)}
DTYPE_IDS = {name: number for number, (name, _) in DTYPES.items()}
BITS = dict(DTYPES.values())
FLOATS = {DTYPES[i][0] for i in range(1, 10)}
SCALES = {2: "f32", 3: "f16", 4: "bf16", 64: "e8m0"}
MINIFLOATS = {5: ("f8e4m3fn", 8), 6: ("f8e5m2", 8), 7: ("f8e4m3fnuz", 8), 8: ("f8e5m2fnuz", 8), 9: ("f4e2m1", 4),
              65: ("f6e3m2", 6), 66: ("f6e2m3", 6), 67: ("f4e3m0", 4), 68: ("int8", 8)}


# ---------------------------------------------------------------------------------------------------- numbers
#
# A number is its binary32 pattern, an int. A binary64 is a Python float. Conversions use integers, so the
# result does not depend on the machine's float environment.

LAYOUT = {  # exponent bits, mantissa bits, bias
    "f64": (11, 52, 1023), "f32": (8, 23, 127), "f16": (5, 10, 15), "bf16": (8, 7, 127),
    "f8e4m3fn": (4, 3, 7), "f8e5m2": (5, 2, 15), "f8e4m3fnuz": (4, 3, 8), "f8e5m2fnuz": (5, 2, 16),
    "f6e3m2": (3, 2, 3), "f6e2m3": (2, 3, 1), "f4e2m1": (2, 1, 1), "f4e3m0": (3, 0, 3),
}
IEEE = ("f64", "f32", "f16", "bf16", "f8e5m2")      # an exponent of all ones is infinity or NaN
QUIET_NAN = 0x7FC00000


def split(kind, code):
    """Returns a pattern as (class, sign, a, b).

    ("finite", sign, M, E) is M * 2^E. The others are ("inf", sign, 0, 0) and
    ("nan", sign, payload, payload bits).
    """
    eb, mb, bias = LAYOUT[kind]
    sign, exponent, mantissa = code >> (eb + mb), code >> mb & ((1 << eb) - 1), code & ((1 << mb) - 1)
    if kind in IEEE and exponent == (1 << eb) - 1:
        return ("nan", sign, mantissa, mb) if mantissa else ("inf", sign, 0, 0)
    if kind == "f8e4m3fn" and code & 0x7F == 0x7F:
        return "nan", sign, 1 << (mb - 1), mb       # payload unused: only arithmetic reads this type
    if kind.endswith("fnuz") and code == 0x80:
        return "nan", 0, 1 << (mb - 1), mb          # payload unused
    if exponent == 0:
        return "finite", sign, mantissa, 1 - bias - mb
    return "finite", sign, mantissa | 1 << mb, exponent - bias - mb


def round_shift(m, by):
    """Returns m * 2^-by, rounded to nearest, ties to even."""
    if by <= 0:
        return m << -by
    low, m = m & ((1 << by) - 1), m >> by
    half = 1 << (by - 1)
    return m + (low > half or (low == half and m & 1))


def join(kind, cls, sign, a, b):
    """Returns the nearest pattern of `kind`; the inverse of `split`. Section 5."""
    eb, mb, bias = LAYOUT[kind]
    top = sign << (eb + mb)
    infinity = ((1 << eb) - 1) << mb
    if cls == "nan":
        if kind in IEEE:                            # keeps sign and leading payload bits, becomes quiet
            payload = a >> (b - mb) if b > mb else a << (mb - b)
            return top | infinity | 1 << (mb - 1) | payload
        if kind == "f8e4m3fn":
            return top | 0x7F
        if kind.endswith("fnuz"):
            return 0x80
        return top | 7                              # f4e2m1: the sign and the largest magnitude
    if cls == "finite":
        if a == 0:
            return 0 if kind.endswith("fnuz") else top
        e = max(a.bit_length() - 1 + b, 1 - bias)   # the exponent, not below that of the subnormals
        code = ((e - (1 - bias)) << mb) + round_shift(a, e - mb - b)
        if kind in IEEE:
            return top | min(code, infinity)
        biggest = {"f8e4m3fn": 0x7E, "f8e4m3fnuz": 0x7F, "f8e5m2fnuz": 0x7F, "f4e2m1": 7}[kind]
        if code <= biggest:
            return 0 if code == 0 and kind.endswith("fnuz") else top | code
    # overflow and infinity
    if kind in IEEE:
        return top | infinity
    return {"f8e4m3fn": top | 0x7F, "f4e2m1": top | 7}.get(kind, 0x80)


def convert(source, target, code):
    return join(target, *split(source, code))


def to_double(kind, code):
    """Returns the exact value of a pattern as a binary64."""
    if kind == "int8":
        return (code - 256 if code >= 128 else code) / 64
    if kind == "f4e3m0":
        magnitude = 2.0 ** ((code & 7) - 3) if code & 7 else 0.0
        return -magnitude if code & 8 else magnitude
    cls, sign, a, b = split(kind, code)
    value = {"nan": float("nan"), "inf": float("inf")}.get(cls)
    if value is None:
        value = float(a) * 2.0 ** b
    return -value if sign else value


def to_number(x):
    """Rounds a binary64 result of arithmetic to binary32."""
    if x != x:
        return QUIET_NAN                            # "A NaN that results from arithmetic is 7fc00000."
    sign = 1 if str(x)[0] == "-" else 0
    if x in (float("inf"), float("-inf")):
        return join("f32", "inf", sign, 0, 0)
    top, bottom = abs(x).as_integer_ratio()         # bottom is a power of two
    return join("f32", "finite", sign, top, 1 - bottom.bit_length())


def stored_number(kind, code):
    """Converts a stored f32, f16, bf16 or e8m0 to a number."""
    if kind == "f32":
        return code
    if kind == "e8m0":                              # 5.1: 2^(code - 127), 255 is NaN
        return QUIET_NAN if code == 255 else join("f32", "finite", 0, 1, code - 127)
    return convert(kind, "f32", code)


def number_to_element(dtype, number):
    return number if dtype == "f32" else convert("f32", dtype, number)     # an f32 element keeps all bits


def element_plus_number(dtype, element, number):
    """`add`: converts the element to binary32, adds in binary32, and converts the sum back."""
    total = to_double("f32", convert(dtype, "f32", element)) + to_double("f32", number)
    return number_to_element(dtype, to_number(total))   # rounding to binary64 first does not change the sum


# ------------------------------------------------------------------------------------------- 7. Integer codes

class Budget:
    """Counts what a frame declares beyond its bytes, and compares it with the limits: [LIM-1] [LIM-3]."""

    def __init__(self, limits):
        self.limits, self.bytes, self.elements, self.tensors = limits, 0, 0, 0

    def alloc(self, count, size, offset):
        self.bytes += count * size
        if self.bytes > self.limits["max_alloc_bytes"]:
            raise FormatError("limit", offset, "more memory than the limit")

    def span(self, count, offset):
        self.elements += count
        if self.elements > self.limits["max_elements"]:
            raise FormatError("limit", offset, "more elements than the limit")

    def runs(self, runs, offset):
        self.count_tensors(sum(run.more + 1 for run in runs), offset)

    def scope(self, scope, offset):
        self.count_tensors(scope.tensors, offset)
        self.span(scope.n, offset)

    def count_tensors(self, count, offset):
        self.tensors += count
        if self.tensors > self.limits["max_blocks"]:
            raise FormatError("limit", offset, "blocks of more tensors than the limit")


class Table:
    """A frequency table: section 7.2."""

    def __init__(self, r):
        start = r.at
        bits = Bits(r)
        first = bits.field(8)
        last = first + bits.field(8)
        rest = first + bits.field(8)
        if last > 255 or rest > last:                                            # [TAB-1]
            raise FormatError("bad_table", start, f"symbols {first} to {last}, rest {rest}")
        self.freq = [0] * 256
        for s in range(first, last + 1):
            if s == rest:
                continue
            x = bits.field(4)
            if x > 12:                                                           # [TAB-2]
                raise FormatError("bad_table", start, f"exponent code {x}")
            if x:
                e = x - 1
                self.freq[s] = (1 << e) + (bits.field(min(e, 3)) << (e - min(e, 3)))
        bits.finish()
        total = sum(self.freq)
        if total > 4095:                                                         # [TAB-2]
            raise FormatError("bad_table", start, f"the frequencies sum to {total}")
        self.freq[rest] = 4096 - total
        if self.freq[first] == 0 or self.freq[last] == 0:                        # [TAB-3]
            raise FormatError("bad_table", start, "the first or last symbol has no frequency")
        self.start, self.owner = [0] * 256, []
        for s in range(256):
            self.start[s] = len(self.owner)
            self.owner += [s] * self.freq[s]


class Bits:
    """A bit plane whose length is known only after it has been read."""

    def __init__(self, r):
        self.r, self.have, self.bits = r, 0, 0

    def field(self, width):
        while self.bits < width:
            self.have |= self.r.uint(1) << self.bits
            self.bits += 8
        value = self.have & ((1 << width) - 1)
        self.have >>= width
        self.bits -= width
        return value

    def finish(self):
        if self.have:                                                            # [CNV-1]
            raise FormatError("nonzero_padding", self.r.at - 1, "padding bits of a table are not zero")


def rans(r, lanes, tables, highest=255):
    """Decodes one symbol with each of `tables`, each at most `highest`: section 7.3."""
    word_count = r.varint()
    states = []
    for _ in range(lanes):
        at = r.at
        states.append(r.uint(4))
        if states[-1] < 1 << 16:                                                 # [ANS-1]
            raise FormatError("bad_code", at, "a stored state below 2^16")
    words_at = r.at
    words = r.take(2 * word_count)                                               # [LIM-2]
    taken, symbols = 0, []
    for i, table in enumerate(tables):
        x = states[i % lanes]
        slot = x % 4096
        s = table.owner[slot]
        x = table.freq[s] * (x // 4096) + slot - table.start[s]
        if x < 1 << 16:
            if taken == word_count:                                              # [ANS-2]
                raise FormatError("bad_code", words_at + 2 * taken, "a needed word is missing")
            x = x << 16 | int.from_bytes(words[2 * taken:2 * taken + 2], "little")
            taken += 1
        states[i % lanes] = x
        if s > highest:
            raise FormatError("out_of_range", words_at, f"symbol {s} is more than {highest}")
        symbols.append(s)
    if taken != word_count or any(x != 1 << 16 for x in states):                 # [ANS-2]
        raise FormatError("bad_code", words_at, "words left over, or a final state that is not 2^16")
    return symbols


def some_table(r, tables):
    at = r.at
    j = r.varint()
    if j == 0:
        return Table(r)
    if j > len(tables):                                                          # [INT-2]
        raise FormatError("unknown_reference", at, f"shared table {j - 1} of {len(tables)}")
    return tables[j - 1]


def tree(r, count, tokens, tables):
    """Decodes a segment whose symbols are in trees: section 7.8."""
    table = some_table(r, tables)
    r = r.part(r.varint())
    nodes = [(f, s, None) for s, f in enumerate(table.freq) if f]
    heapq.heapify(nodes)
    for number in itertools.count(256):
        if len(nodes) == 1:
            break
        left, right = heapq.heappop(nodes), heapq.heappop(nodes)
        heapq.heappush(nodes, (left[0] + right[0], number, (left, right)))

    def below(node, n):
        if node[2] is None:
            return [node[1]] * n
        if n > 8 * r.left():                                                     # [TRE-1]
            raise FormatError("bad_code", r.at, "the bits of a node are missing")
        plane = r.plane(n)                                                       # [CNV-1]
        bits = [plane.field(1) for _ in range(n)]
        ones = sum(bits)
        lists = iter(below(node[2][0], n - ones)), iter(below(node[2][1], ones))
        return [next(lists[bit]) for bit in bits]

    out = []
    while len(out) < count:
        out += below(nodes[0], min(1 << 15, count - len(out)))
    if r.left():                                                                 # [TRE-1]
        raise FormatError("bad_code", r.at, "bytes left over after the planes")
    return out


def segment(r, count, tokens, tables):
    table = some_table(r, tables)
    lanes = 1 << r.u8((0, 2, 5))
    symbols = rans(r, lanes, itertools.repeat(table, count), 127 if tokens else 255)    # [INT-5]
    if not tokens:
        return symbols
    raw = r.plane(sum(max(0, t // 2 - 1) for t in symbols))
    return [t if t < 2 else (2 + t % 2) << (t // 2 - 1) | raw.field(t // 2 - 1) for t in symbols]


def entropy(r, count, tokens, tables, budget, counts=(), segment=segment):
    """Decodes `count` integers: section 7.1. Each segment by `segment`, or by `tree`.

    If the integers are values of kind `ulp` in a support that is classed by the base, `counts` holds the
    number of positions of each group that has any.
    """
    at = r.at
    log = r.u8([0, 1, *range(10, 25)])
    if log == 1 and len(counts) < 2:                                             # [INT-3]
        raise FormatError("out_of_range", at, "segments of groups, without two groups that have positions")
    if log > 1 and count <= 1 << log:                                            # [INT-1]
        raise FormatError("not_canonical", at, "one segment only")
    budget.alloc(count, 8, at)                                                   # [LIM-2]
    if log == 0:
        return segment(r, count, tokens, tables)
    if log == 1:
        return [v for of_group in counts for v in segment(r, of_group, tokens, tables)]
    out = []
    while len(out) < count:
        inner = r.part(r.varint())
        out += segment(inner, min(1 << log, count - len(out)), tokens, tables)
        inner.finish()                                                           # [CNV-6]
    return out


def ints(r, count, tables, budget, highest=None, counts=()):
    """Decodes `count` coded integers, each at most `highest`: section 7.1, [INT-4].

    For `counts` see `entropy`.
    """
    if count == 0:
        return []
    start = r.at
    coding = r.u8()
    if coding not in CODINGS:                       # [CNV-4] [PRF-1]: the allowed values are a table of the registry
        raise FormatError("unsupported", start, f"coding {coding}")
    of_symbols = tree if coding == 5 else segment
    if coding == 0:
        width = r.u8(range(65))
        if width == 0:
            budget.alloc(count, 8, start)
        plane = r.plane(count * width)                                           # [LIM-2]
        out = [plane.field(width) for _ in range(count)]
    elif coding == 1:
        out = entropy(r, count, True, tables, budget, counts)
    elif coding in (2, 5) and (coding == 2 or r.u8((2, 3)) == 2):
        out = entropy(r, count, False, tables, budget, counts if coding == 2 else (), of_symbols)
    elif coding in (3, 5):                          # 7.5 Referenced symbols
        row_len = r.varint(1, count)
        flags = r.flags(0b11)
        at = r.at
        rows = entropy(r, -(-count // row_len), False, tables, budget)
        columns = entropy(r, row_len, False, tables, budget) if flags & 1 else [0] * row_len
        if flags & 2 and max(max(rows), max(columns)) > 254:                     # [INT-7]
            raise FormatError("out_of_range", at, "a reference of 255 with zero apart")
        out = []
        for v, s in enumerate(entropy(r, count, False, tables, budget, (), of_symbols)):
            reference = rows[v // row_len] + columns[v % row_len]
            if flags & 2:
                out.append(0 if s == 0 else 1 + (s - 1 + reference) % 255)
            else:
                out.append((s + reference) % 256)
    else:                                           # joined
        per = r.u8((2, 4, 8))
        symbols = entropy(r, -(-count // per), False, tables, budget)
        budget.alloc(count, 8, start)                                            # [LIM-2]
        width = 8 // per
        out = [s >> width * i & (1 << width) - 1 for s in symbols for i in range(per)]
        if any(out[count:]):                                                     # [INT-6]
            raise FormatError("nonzero_padding", start, "the last symbol holds more integers than there are")
        del out[count:]
    if highest is not None:
        for v in out:
            if v > highest:                                                      # [INT-4]
                raise FormatError("out_of_range", start, f"integer {v} is more than {highest}")
    return out


class View:
    """The rows and columns of one tensor of a scope: section 7.6."""

    def __init__(self, code, tensor, scope, at):
        self.has_rows, self.has_columns = bool(code & 0x40), bool(code & 0x80)
        self.rows, self.columns, self.cell = 1, 1, scope.length or max(1, tensor.count)
        if code == 0:
            return
        if code < 0x40 or tensor.count == 0:                                     # [VIW-1]
            raise FormatError("not_canonical", at, f"view {code:#04x} of {tensor.count} elements")
        a, b = code & 7, code >> 3 & 7
        if a == 7:
            if b != 7 or tensor.matrix is None:                                  # [VIW-2]
                raise FormatError("out_of_range", at, f"view {code:#04x} of a tensor without matrix view, or b = {b}")
            (self.rows, self.columns), self.cell = tensor.matrix, 1
        else:
            if not a <= b <= len(tensor.shape):                                  # [VIW-2]
                raise FormatError("out_of_range", at, f"view {code:#04x} of a tensor of rank {len(tensor.shape)}")
            shape = tensor.shape
            self.rows, self.columns, self.cell = math.prod(shape[:a]), math.prod(shape[a:b]), math.prod(shape[b:])
        row_len = self.columns * self.cell
        if scope.form == 2:
            if scope.start % row_len or scope.length % row_len:                  # [VIW-3]
                raise FormatError("out_of_range", at, f"a range that cuts rows of {row_len} elements")
            self.rows = scope.length // row_len

    def place(self, i):
        """Returns row and column of element i."""
        return i // (self.columns * self.cell), i // self.cell % self.columns


def read_views(r, cx):
    at = r.at
    codes = ints(r, cx.scope.tensors, cx.tables, cx.budget, 255)                 # [INT-4]
    return [View(code, tensor, cx.scope, at) for code, tensor in zip(codes, cx.scope.list)]


def read_signs(r, values, cx, tables, budget):
    """Reads the signs of the values with the numbers `values`: section 7.7.

    `cx` is None for nested values.
    """
    at, count = r.at, len(values)
    coding = r.u8()
    if coding not in SIGN_CODINGS:                                               # [SIG-1] [PRF-1]
        raise FormatError("unsupported", at, f"coding {coding} of signs")
    if coding == 0:
        plane = r.plane(count)
        return [plane.field(1) for _ in range(count)]
    if cx is None or cx.support_id in (7, 8) or cx.is_by_base() or count == 0:   # [SIG-1]
        raise FormatError("out_of_range", at, "predicted signs of values without rows and columns")
    views = read_views(r, cx)
    budget.span(sum(view.has_rows * view.rows + view.has_columns * view.columns for view in views), at)  # [LIM-3]
    places, of_tensor = [], [(set(), set()) for _ in views]
    positions = [cx.positions[i] for i in values]
    for p, t in zip(positions, cx.scope.tensor_of(positions)):
        row, column = views[t].place(p - cx.scope.firsts[t])
        places.append((t, row, column))
        of_tensor[t][0].add(row)
        of_tensor[t][1].add(column)
    lists = [(sorted(rows) if view.has_rows else [], sorted(columns) if view.has_columns else [])
             for view, (rows, columns) in zip(views, of_tensor)]
    plane = r.plane(sum(len(rows) + len(columns) for rows, columns in lists))    # [SIG-3]
    bits = [({row: plane.field(1) for row in rows}, {column: plane.field(1) for column in columns})
            for rows, columns in lists]
    width = r.u8(range(1, 9))
    at = r.at
    symbols = entropy(r, -(-count // width), False, tables, budget)
    if max(symbols) >> width:                                                    # [SIG-2]
        raise FormatError("out_of_range", at, f"symbol {max(symbols)} in {width} bits")
    if symbols[-1] >> (count - 1) % width + 1:                                   # [SIG-2]
        raise FormatError("nonzero_padding", at, "bits that belong to no sign")
    return [symbols[k // width] >> k % width & 1 ^ bits[t][0].get(row, 0) ^ bits[t][1].get(column, 0)
            for k, (t, row, column) in enumerate(places)]


# ------------------------------------------------------------------------------------------ 8. Random numbers

def philox(counter, key):
    """Philox4x32-10: maps a counter of four words and a key of two words to four words."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


# --------------------------------------------------------------------------------------------------- supports

def support_all(r, n, cx):
    if r.left():                                                                 # [ALL-1]
        raise FormatError("length_mismatch", r.at, "the support `all` is not empty")
    return range(n)


def rice_run(r, count, low_bits, unary_len):
    """Decodes a run of gaps: section 7.4.

    The second plane has `unary_len` bytes; if `unary_len` is None, it is the rest of the support.
    """
    if count > 8 * r.left():                                                     # [LIM-2]
        raise FormatError("length_mismatch", r.at, f"{count} gaps in {r.left()} bytes")
    low = r.plane(count * low_bits)
    at = r.at
    plane = r.take(r.left() if unary_len is None else unary_len)
    gaps, zeros, used = [], 0, 0
    for i in range(8 * len(plane)):
        if plane[i // 8] >> (i % 8) & 1:
            if len(gaps) == count:
                raise FormatError("length_mismatch", at + i // 8, "more ones than gaps")     # [RIC-3]
            gaps.append(zeros << low_bits | low.field(low_bits))
            zeros, used = 0, i + 1
        else:
            zeros += 1
    if len(gaps) != count or (used + 7) // 8 != len(plane):                      # [RIC-3]
        raise FormatError("length_mismatch", at, f"{len(gaps)} ones for {count} gaps in {len(plane)} bytes")
    return gaps


def support_rice(r, n, cx):
    at = r.at
    m = r.varint()
    if m > n:                                                                    # [RIC-1]
        raise FormatError("count_mismatch", at, f"{m} positions in {n} elements")
    if m == 0:
        return []
    at = r.at
    log = r.u8([0, *range(7, 17)])
    if log == 0:
        low_bits = r.u8(range(64))
        runs = [(m, low_bits, None, None)]
    else:
        if m <= 1 << log:                                                        # [RIC-4]
            raise FormatError("not_canonical", at, "one chunk only")
        if m > 8 * r.left():                                                     # [LIM-2]
            raise FormatError("length_mismatch", at, f"{m} gaps in {r.left()} bytes")
        runs = []
        for first in range(0, m, 1 << log):
            low_bits = r.u8(range(64))
            unary_len = r.varint()
            runs.append((min(1 << log, m - first), low_bits, unary_len, r.varint()))
    positions, last = [], -1
    for count, low_bits, unary_len, span in runs:
        at, before = r.at, last
        for gap in rice_run(r, count, low_bits, unary_len):
            last += gap + 1
            if last >= n:                                                        # [RIC-2]
                raise FormatError("position_out_of_range", at, f"position {last} of {n}")
            positions.append(last)
        if span is not None and span != last - before:                           # [RIC-5]
            raise FormatError("count_mismatch", at, f"span {span}, not {last - before}")
    return positions


def support_tokens(r, n, cx):
    at = r.at
    m = r.varint()
    if m > n:                                                                    # [GTK-1]
        raise FormatError("count_mismatch", at, f"{m} positions in {n} elements")
    if m == 0:
        return []
    at = r.at
    positions, last = [], -1
    for gap in entropy(r, m, True, cx.tables, cx.budget):
        last += gap + 1
        if last >= n:                                                            # [GTK-2]
            raise FormatError("position_out_of_range", at, f"position {last} of {n}")
        positions.append(last)
    return positions


def support_bitmap(r, n, cx):
    if r.left() != (n + 7) // 8:                                                 # [BMP-1]
        raise FormatError("length_mismatch", r.at, f"{r.left()} bytes for {n} bits")
    plane = r.plane(n)
    return [i for i in range(n) if plane.field(1)]


def support_chunked(r, n, cx):
    chunk_len = r.varint(1, 1 << 32)
    kept = r.varint(1, chunk_len)
    width = (chunk_len - 1).bit_length()
    full, short = divmod(n, chunk_len)
    m = full * min(kept, chunk_len) + min(kept, short)
    if width == 0:
        cx.budget.alloc(m, 8, r.at)
    at = r.at
    plane = r.plane(m * width)
    positions = []
    for first in range(0, n, chunk_len):
        length, last = min(chunk_len, n - first), -1
        for _ in range(min(kept, length)):
            p = plane.field(width)
            if p >= length:                                                      # [CHK-2]
                raise FormatError("position_out_of_range", at, f"position {p} in a chunk of {length}")
            if p <= last:                                                        # [CHK-1]
                raise FormatError("not_ascending", at, f"position {p} after {last}")
            last = p
            positions.append(first + p)
    return positions


def support_rows(r, n, cx):
    at = r.at
    row_len = r.varint(1)
    if n % row_len:                                                              # [ROW-1]
        raise FormatError("out_of_range", at, f"rows of {row_len} in {n} elements")
    at = r.at
    inner = r.varint()
    if inner not in (2, 3, 4):                                                   # [ROW-2]
        raise FormatError("out_of_range", at, f"support {inner} inside rows")
    rows = SUPPORT_READERS[inner](r, n // row_len, cx)
    cx.budget.alloc(len(rows) * row_len, 8, at)
    return [row * row_len + i for row in rows for i in range(row_len)]


def support_seeded(r, n, cx):
    at = r.at
    m = r.varint()
    if m > n:                                                                    # [SED-1]
        raise FormatError("count_mismatch", at, f"{m} positions in {n} elements")
    seed = r.uint(8)
    cx.budget.alloc(m, 8, at)
    key, chosen = (seed & 0xFFFFFFFF, seed >> 32), set()
    for d in range(m):
        j = n - m + d
        words = philox((d & 0xFFFFFFFF, d >> 32, 0xFFFFFFFF, 0xFFFFFFFF), key)
        x = (words[0] | words[1] << 32) * (j + 1) >> 64
        chosen.add(j if x in chosen else x)
    return sorted(chosen)


def support_set(r, n, cx):
    at = r.at
    if cx.is_index_set:                                                          # [ISF-2]
        raise FormatError("out_of_range", at, "an index set of kind set")
    identity = r.take(32)
    known = cx.decoder.sets.get(identity)
    if known is None:                                                            # [SET-1]
        raise FormatError("unknown_reference", at, f"index set {identity.hex()}")
    if known["manifest"] != cx.manifest_id or known["scope"].key() != cx.scope.key():        # [SET-2]
        raise FormatError("count_mismatch", at, "the index set has another scope or manifest")
    return known["positions"]


class ClassGroup:
    """Consecutive classes whose gaps share one code: supports/classed.md."""

    def __init__(self, r, most):
        self.classes, self.count, self.quotients = r.varint(1, most), r.varint(), []
        code = r.flags(0b0111_1111) if self.count > 0 else 0                     # [CNV-5]
        self.shift, self.has_tokens = code & 63, bool(code >> 6)


def unary_quotients(r, count):
    if count > 8 * r.left():                                                     # [LIM-2]
        raise FormatError("length_mismatch", r.at, f"{count} quotients in {r.left()} bytes")
    out, zeros = [], 0
    while len(out) < count:
        at, byte = r.at, r.uint(1)                                               # [CNV-6]
        for bit in range(8):
            if not byte >> bit & 1:
                zeros += 1
            elif len(out) == count:                                              # [CNV-1]
                raise FormatError("nonzero_padding", at, "a one bit after the last quotient")
            else:
                out.append(zeros)
                zeros = 0
    return out


def read_class_groups(r, n, classes, most, cx):
    """Reads groups of at most `most` classes each, and their quotients."""
    at = r.at
    groups = [ClassGroup(r, most) for _ in range(r.varint(1, classes))]
    if sum(group.classes for group in groups) != classes:                        # [CLS-2]
        raise FormatError("count_mismatch", at, f"groups of {[g.classes for g in groups]} of {classes} classes")
    if sum(group.count for group in groups) > n:                                 # [CLS-3]
        raise FormatError("count_mismatch", at, f"{[g.count for g in groups]} positions in {n} elements")
    for group in groups:
        if group.count > 0 and group.has_tokens:
            group.quotients = entropy(r, group.count, True, cx.tables, cx.budget)
        elif group.count > 0:
            group.quotients = unary_quotients(r, group.count)
    return groups


class Lists:
    """The elements of each class, in ascending order."""

    def __init__(self, lists):
        self.lists = lists

    def size(self, c):
        return len(self.lists[c])

    def find(self, c, numbers):
        return [self.lists[c][k] for k in numbers]


class AnyBase:
    """Classes of `n` elements each: bounds for those that an unknown base gives."""

    def __init__(self, n):
        self.n = n

    def size(self, c):
        return self.n

    def find(self, c, numbers):
        return numbers


class Grid:
    """The classes of the elements of one tensor by rule 2. `first` is the index of its first element."""

    def __init__(self, view, level, rows, columns, first):
        self.rows, self.level, self.first = rows, level, first
        self.row_len = view.columns * view.cell
        self.cell = view.cell if view.has_columns else self.row_len     # without columns, a row is one cell
        self.each = 1 if view.has_rows else view.rows                   # without rows, all rows are equal
        self.columns_of = {}
        for q, symbol in enumerate(columns):
            self.columns_of.setdefault(symbol, []).append(q)
        self.sizes = collections.Counter()
        for row, count in collections.Counter(rows).items():
            for column, those in self.columns_of.items():
                self.sizes[level + row + column] += count * self.each * len(those) * self.cell

    def find(self, c, numbers):
        """Returns the indices of those elements of the class that have the ascending `numbers` in it."""
        out, at, numbers = [], 0, collections.deque(numbers)
        for i, row in enumerate(self.rows):
            if not numbers:
                break
            those = self.columns_of.get(c - self.level - row, [])
            size = len(those) * self.cell
            while numbers and numbers[0] < at + self.each * size:
                further, rest = divmod(numbers.popleft() - at, size)
                q, inside = divmod(rest, self.cell)
                out.append(self.first + (i + further) * self.row_len + those[q] * self.cell + inside)
            at += self.each * size
        return out


class Grids:
    """The elements of each class by rule 2."""

    def __init__(self, grids):
        self.grids, self.sizes = grids, collections.Counter()
        for grid in grids:
            self.sizes.update(grid.sizes)

    def size(self, c):
        return self.sizes[c]

    def find(self, c, numbers):
        out, first = [], 0
        for grid in self.grids:
            end = first + grid.sizes[c]
            mine = numbers[bisect.bisect_left(numbers, first):bisect.bisect_left(numbers, end)]
            out += grid.find(c, [k - first for k in mine])
            first = end
        return out


def place_gaps(groups, elements, low, at):
    """Returns the positions, in the order of groups and ranks. `elements` has those of each class."""
    plane, positions, first = Plane(low), [], 0
    for group in groups:
        sizes = [elements.size(c) for c in range(first, first + group.classes)]
        ends, rank, numbers = list(itertools.accumulate(sizes)), -1, [[] for _ in sizes]
        for quotient in group.quotients:
            left = ends[-1] - rank - 1
            if left == 0:                                                        # [CLS-4]
                raise FormatError("position_out_of_range", at, f"no element after rank {rank}")
            width = max(0, group.shift - bisect.bisect_right(ends, rank + 1))
            if quotient > left - 1 >> width:                                     # [CLS-4]
                raise FormatError("position_out_of_range", at, f"a gap of {quotient} << {width} in {left} elements")
            if plane.at + width > 8 * len(low):                                  # [CLS-5]
                raise FormatError("length_mismatch", at, "the plane of low bits is too short")
            gap = quotient << width | plane.field(width)
            if gap >= left:                                                      # [CLS-4]
                raise FormatError("position_out_of_range", at, f"a gap of {gap} in {left} elements")
            rank += 1 + gap
            c = bisect.bisect_right(ends, rank)
            numbers[c].append(rank - (ends[c] - sizes[c]))
        for c, mine in enumerate(numbers, first):
            if mine:
                positions += elements.find(c, mine)
        first += group.classes
    if len(low) != (plane.at + 7) // 8:                                          # [CLS-5]
        raise FormatError("length_mismatch", at, f"{plane.at} low bits in {len(low)} bytes")
    padding(low, plane.at, at)                                                   # [CNV-1]
    return positions


class ByBase:
    """A support that is classed by the base. Only the base gives its positions."""

    def __init__(self, bounds, groups, low, at):
        self.bounds, self.groups, self.low, self.at = bounds, groups, low, at

    def __len__(self):
        return sum(group.count for group in self.groups)

    def counts(self):
        return [group.count for group in self.groups if group.count > 0]

    def positions(self, dtype, base):
        """Returns the positions in the order of the values. `base` gives the elements of the scope."""
        width = BITS[dtype] - (dtype in FLOATS)     # without the sign of a float
        class_of = [sum(bound > key for bound in self.bounds) for key in range(256)]
        lists = [[] for _ in range(len(self.bounds) + 1)]
        for i, element in enumerate(base):
            key = (element & (1 << width) - 1) >> max(0, width - 8)
            lists[class_of[key]].append(i)
        return place_gaps(self.groups, Lists(lists), self.low, self.at)


def read_rows_and_columns(r, classes, cx):
    """Returns the elements of each class by rule 2."""
    scope, budget = cx.scope, cx.budget
    views = read_views(r, cx)
    levels = ints(r, scope.tensors, cx.tables, budget, 63)                       # [INT-4]
    at = r.at
    table_count = r.u8(range(17))                                                # [CLS-10]
    lengths = [n for view in views for n in view.has_rows * [view.rows] + view.has_columns * [view.columns]]
    if (table_count == 0) != (lengths == []):                                    # [CLS-10]
        raise FormatError("count_mismatch", at, f"{table_count} tables for {len(lengths)} lists")
    own = [Table(r) for _ in range(table_count)]
    numbers = ints(r, len(lengths), cx.tables, budget, table_count - 1)          # [INT-4]
    budget.alloc(sum(lengths), 8, at)                                            # [LIM-2]
    budget.span(4 * sum(lengths), at)                                            # [LIM-3]
    of_lists = itertools.chain.from_iterable(itertools.repeat(own[j], n) for j, n in zip(numbers, lengths))
    symbols = iter(rans(r, 1, of_lists)) if lengths else iter(())
    grids = []
    for view, level, first, n in zip(views, levels, scope.firsts, scope.counts):
        rows = list(itertools.islice(symbols, view.rows)) if view.has_rows else [0]
        columns = list(itertools.islice(symbols, view.columns)) if view.has_columns else [0]
        if level + max(rows) + max(columns) >= classes:                          # [CLS-11]
            raise FormatError("out_of_range", at, f"class {level} + {max(rows)} + {max(columns)} of {classes}")
        if n > 0:
            grids.append(Grid(view, level, rows, columns, first))
    return Grids(grids)


def support_classed(r, n, cx):
    at = r.at
    rule = r.u8()
    if rule not in (1, 2):                                                       # [CLS-1]
        raise FormatError("unsupported", at, f"rule {rule}")
    if rule == 1 and (cx.is_index_set or cx.scope.add):                          # [CLS-7]
        raise FormatError("out_of_range", at, "classed by the base, in an index set or with add")
    if rule == 1 and not cx.has_delta:                                           # [CLS-7]
        raise FormatError("unknown_reference", at, "classed by the base, without the attribute delta")
    if rule == 1 and not cx.in_one_run:                                          # [CLS-8]
        raise FormatError("unknown_reference", at, "classed by the base, in several runs of the delta")
    classes = r.u8(range(1, 65))
    if rule == 2:
        elements = read_rows_and_columns(r, classes, cx)
        groups = read_class_groups(r, n, classes, classes, cx)
        at = r.at
        return sorted(place_gaps(groups, elements, r.take(r.left()), at))
    at = r.at
    bounds = list(r.take(classes - 1))
    if any(a <= b for a, b in zip(bounds, bounds[1:] + [0])):                    # [CLS-6]
        raise FormatError("not_ascending", at, f"bounds {bounds}")
    groups = read_class_groups(r, n, classes, 1, cx)                             # [CLS-9]
    at = r.at
    low = r.take(r.left())
    place_gaps(groups, AnyBase(n), low, at)                                      # [CLS-4] [CLS-5], without the base
    return ByBase(bounds, groups, low, at)


SUPPORT_READERS = {1: support_all, 2: support_rice, 3: support_tokens, 4: support_bitmap, 5: support_chunked,
                   6: support_rows, 7: support_seeded, 8: support_set, 9: support_classed}


# -------------------------------------------------------------------------------------------------- 5. Blocks

class Tensor:
    """One entry of a manifest."""

    def __init__(self, name, dtype, shape, matrix, shard):
        self.name, self.dtype, self.shape, self.matrix, self.shard = name, dtype, shape, matrix, shard
        self.count = 1
        for dim in shape:
            self.count *= dim

    def describe(self):
        out = {"name": self.name, "dtype": self.dtype, "shape": self.shape}
        if self.matrix is not None:
            out["matrix"] = self.matrix
        if self.shard is not None:
            out["shard"] = self.shard
        return out


class Scope:
    def __init__(self, r, manifest, add_allowed=True):
        at = r.at
        self.flags = r.flags(0b111 if add_allowed else 0b011)                    # [CNV-5] [ISF-1]
        self.add = self.flags >> 2 & 1
        if self.add and 2 not in SCOPE_BITS:                                     # [PRF-1]
            raise FormatError("unsupported", at, "an added block")
        form = self.flags & 3
        if form == 3:                                                            # [CNV-4]
            raise FormatError("out_of_range", at, "bits 0 and 1 of the flags are 3")
        self.tensor, self.tensors, self.start, self.length = r.varint(), 1, 0, None
        if form == 1:
            self.tensors = r.varint(2)                                           # [BLK-2]
        if form == 2:
            self.start, self.length = r.varint(), r.varint()
        if self.tensor + self.tensors > len(manifest):                           # [BLK-1]
            raise FormatError("out_of_range", at, f"tensor {self.tensor} of {len(manifest)}")
        mine = manifest[self.tensor:self.tensor + self.tensors]
        self.dtype = mine[0].dtype
        if any(t.dtype != self.dtype for t in mine):                             # [BLK-3]
            raise FormatError("out_of_range", at, "tensors of several element types")
        if form == 2:
            if not 1 <= self.length < mine[0].count:                             # [BLK-2]
                raise FormatError("out_of_range", at, f"a range of {self.length} in {mine[0].count} elements")
            if self.start + self.length > mine[0].count:                         # [BLK-1]
                raise FormatError("out_of_range", at, "a range beyond the tensor")
            self.counts = [self.length]
        else:
            self.counts = [t.count for t in mine]
        self.list, self.firsts = mine, [0, *itertools.accumulate(self.counts)]
        self.n = sum(self.counts)
        self.form = form

    def key(self):
        return self.form, self.tensor, self.tensors, self.start, self.length

    def begin(self):
        return self.tensor, self.start

    def end(self):
        return (self.tensor, self.start + self.length) if self.form == 2 else (self.tensor + self.tensors, 0)

    def describe(self):
        extra = {0: [], 1: [self.tensors], 2: [self.start, self.length]}[self.form]
        return [self.flags, self.tensor, *extra]

    def tensor_of(self, positions):
        """Returns, for each position, the number of its tensor within the scope."""
        return [bisect.bisect_right(self.firsts, p) - 1 for p in positions]


class Context:
    """The state that a support or values page may refer to."""

    def __init__(self, decoder, manifest_id, scope, tables, budget, is_index_set=False, has_delta=False,
                 in_one_run=False):
        self.decoder, self.manifest_id, self.scope = decoder, manifest_id, scope
        self.tables, self.budget = tables, budget
        self.is_index_set, self.has_delta, self.in_one_run = is_index_set, has_delta, in_one_run
        self.support_id = self.positions = None

    def is_by_base(self):
        return isinstance(self.positions, ByBase)

    def counts(self):
        """Returns the number of values in each segment of `segment_log` 1: section 7.1."""
        return self.positions.counts() if self.is_by_base() else ()


def read_support(r, support_id, length, cx):
    inner = r.part(length)
    positions = SUPPORT_READERS[support_id](inner, cx.scope.n, cx)
    inner.finish()                                                               # [CNV-6]
    return positions


# -------------------------------------------------------------------------------------- 5.1 Groups and scales

class Groups:
    def __init__(self, r, m, cx):
        at = r.at
        self.size, self.cx = r.varint(), cx
        if self.size == 1 and cx is None:                                        # [GRP-1]
            raise FormatError("out_of_range", at, "groups by tensor without a scope")
        if self.size == 0:
            self.number = 1
            self.of = [0] * m
        elif self.size == 1:
            self.number = cx.scope.tensors
            self.of = cx.scope.tensor_of(cx.positions)
        else:
            self.number = -(-m // self.size)
            self.of = [i // self.size for i in range(m)]


def read_scales(r, groups):
    """Reads one number per group."""
    at = r.at
    kind = SCALES.get(r.u8())
    if kind is None:                                # [CNV-4]: the allowed values are a table of the registry
        raise FormatError("unsupported", at, "unknown scale format")
    size = {"f32": 4, "f16": 2, "bf16": 2, "e8m0": 1}[kind]
    data = r.take(size * groups.number)
    return [stored_number(kind, int.from_bytes(data[i:i + size], "little")) for i in range(0, len(data), size)]


# ----------------------------------------------------------------------------------------------------- values
#
# Each function takes a reader of the rest of the block, m, and the context; `cx` is None for nested values.
# It returns ("bits", elements), ("numbers", binary32 patterns), ("diffs", integers) or ("latent", codes).

def rest_is(r, size, what):
    if r.left() != size:
        raise FormatError("length_mismatch", r.at, f"{what}: {size} bytes needed, {r.left()} left")


def values_floats(r, m, cx, tables, budget):
    at = r.at
    stored = r.u8((0, 2, 3, 4))
    if stored == 0 and cx is None:                                               # [LAT-1] [LRK-2] [DCT-4]
        raise FormatError("out_of_range", at, "nested values without a type")
    if stored == 0:
        width = BITS[cx.scope.dtype]
        rest_is(r, (m * width + 7) // 8, "elements")                             # [FLT-1]
        plane = r.plane(m * width)
        return "bits", [plane.field(width) for _ in range(m)]
    kind = SCALES[stored]
    size = 4 if kind == "f32" else 2
    rest_is(r, m * size, "numbers")                                              # [FLT-1]
    data = r.take(m * size)
    patterns = [int.from_bytes(data[i:i + size], "little") for i in range(0, len(data), size)]
    return "numbers", [stored_number(kind, pattern) for pattern in patterns]


def values_constant(r, m, cx, tables, budget):
    groups = Groups(r, m, cx)
    scales = read_scales(r, groups)
    rest_is(r, 0, "scales")                                                      # [CST-1]
    return "numbers", [scales[g] for g in groups.of]


def values_sign(r, m, cx, tables, budget):
    groups = Groups(r, m, cx)
    scales = read_scales(r, groups)
    signs = read_signs(r, range(m), cx, tables, budget)
    rest_is(r, 0, "signs")                                                       # [SGN-1]
    return "numbers", [scales[g] ^ sign << 31 for g, sign in zip(groups.of, signs)]


def values_pow2(r, m, cx, tables, budget):
    at = r.at
    low = r.uint(2)
    low -= (low & 0x8000) << 1
    if not -1074 <= low <= 1023:                                                 # [CNV-4]
        raise FormatError("out_of_range", at, f"min_exponent {low}")
    r.u8((0, 1, 2))
    codes = ints(r, m, tables, budget, 255)                                      # [INT-4]
    signs = iter(read_signs(r, [i for i, c in enumerate(codes) if c], cx, tables, budget))
    rest_is(r, 0, "signs")                                                       # [PW2-1]
    return "numbers", [join("f32", "finite", next(signs), 1, low + c - 1) if c else 0 for c in codes]


def values_levels(r, m, cx, tables, budget):
    spacing = r.u8((0, 1))
    s = r.varint(1, 255 if spacing else 65535)
    r.u8((1, 2, 255))
    groups = Groups(r, m, cx)
    norms = [to_double("f32", x) for x in read_scales(r, groups)]
    at = r.at
    out = []
    for u, g in zip(ints(r, m, tables, budget), groups.of):
        level = unzigzag(u)
        if abs(level) > s:                                                       # [LEV-1]
            raise FormatError("out_of_range", at, f"level {level}, s = {s}")
        if spacing == 0:
            value = norms[g] * float(level) / float(s)
        elif level == 0:
            value = 0.0
        else:
            value = (1.0 if level > 0 else -1.0) * norms[g] * 2.0 ** (abs(level) - s)
        out.append(to_number(value))
    return "numbers", out


def values_affine(r, m, cx, tables, budget):
    bits = r.u8(range(1, 9))
    zero = r.u8((0, 1, 2))
    groups = Groups(r, m, cx)
    scales = [to_double("f32", x) for x in read_scales(r, groups)]
    at = r.at
    points, offsets = [1 << (bits - 1)] * groups.number if zero == 0 else [], []
    if zero == 1:
        points = list(r.take(groups.number))
        if any(p >> bits for p in points):                                       # [AFF-1]
            raise FormatError("out_of_range", at, "a zero point beyond the codes")
    if zero == 2:
        offsets = [to_double("f32", x) for x in read_scales(r, groups)]
    out = []
    for code, g in zip(ints(r, m, tables, budget, (1 << bits) - 1), groups.of):  # [AFF-1]
        if zero == 2:
            out.append(to_number(scales[g] * float(code) + offsets[g]))
        else:
            out.append(to_number(scales[g] * float(code - points[g])))
    return "numbers", out


def values_codebook(r, m, cx, tables, budget):
    entries = r.u8(range(1, 256)) + 1
    book = [r.uint(4) for _ in range(entries)]
    flags = r.flags(0b11)
    groups = Groups(r, m, cx)
    scales = [to_double("f32", x) for x in read_scales(r, groups)] if flags & 1 else None
    shifts = [to_double("f32", x) for x in read_scales(r, groups)] if flags & 2 else None
    out = []
    for code, g in zip(ints(r, m, tables, budget, entries - 1), groups.of):      # [CBK-1]
        value = to_double("f32", book[code])
        if scales is not None:
            value = value * scales[g]
        if shifts is not None:
            value = value + shifts[g]
        out.append(to_number(value))
    return "numbers", out


def values_minifloat(r, m, cx, tables, budget):
    at = r.at
    kind, width = MINIFLOATS.get(r.u8(), (None, 0))
    if kind is None:                                                             # [MFL-2]
        raise FormatError("unsupported", at, "unknown minifloat")
    groups = Groups(r, m, cx)
    scales = [to_double("f32", x) for x in read_scales(r, groups)]
    codes = ints(r, m, tables, budget, (1 << width) - 1)                         # [MFL-1]
    return "numbers", [to_number(to_double(kind, c) * scales[g]) for c, g in zip(codes, groups.of)]


def values_planes(r, m, cx, tables, budget):
    dtype = cx.scope.dtype
    width = BITS[dtype]
    count = m if width >= 8 else (m + 1) // 2
    out = [0] * m
    for plane in range(max(1, width // 8)):
        if r.u8((0, 1)) == 0:
            start = r.at
            symbols = r.take(count)
            if width == 4:
                padding(symbols, 4 * m, start)                                   # [CNV-1]
        else:
            start = r.at
            symbols = ints(r, count, tables, budget, 255)                        # [PLN-2]
            if width == 4:
                padding(symbols, 4 * m, start)
        if width == 4:
            out = [symbols[i // 2] >> (i % 2 * 4) & 15 for i in range(m)]
        else:
            out = [v | s << (8 * plane) for v, s in zip(out, symbols)]
    rest_is(r, 0, "planes")                                                      # [PLN-1]
    if dtype in ("f64", "f32", "f16", "bf16"):      # undo the rotation: one bit to the right
        out = [v >> 1 | (v & 1) << (width - 1) for v in out]
    return "bits", out


def values_ulp(r, m, cx, tables, budget):
    at = r.at
    if not cx.has_delta:                                                         # [DEL-3]
        raise FormatError("unknown_reference", at, "values of kind ulp without the attribute delta")
    width = BITS[cx.scope.dtype]
    out = [unzigzag(u) for u in ints(r, m, tables, budget, counts=cx.counts())]
    for d in out:
        if not -(1 << (width - 1)) <= d < 1 << (width - 1):                      # [ULP-1]
            raise FormatError("out_of_range", at, f"difference {d} in {width} bits")
    return "diffs", out


def nested(r, count, tables, budget, with_length=False, kinds=(1, 4, 5, 6, 7, 8)):
    """Reads values inside values, which have no scope and give numbers.

    Their length is stored only if they are not the rest of the block.
    """
    at = r.at
    kind = r.varint()
    if kind not in kinds:                                                        # [LAT-1] [LRK-2] [DCT-4]
        raise FormatError("out_of_range", at, f"values {kind} inside values")
    inner = r.part(r.varint() if with_length else r.left())
    _, out = VALUES_READERS[kind](inner, count, None, tables, budget)
    inner.finish()                                                               # [CNV-6]
    return out


def values_latent(r, m, cx, tables, budget):
    model = r.take(32)
    shape = [r.varint() for _ in range(r.varint(0, 32))]
    count = 1
    for dim in shape:
        count *= dim
    if count >> 64:                                                              # [LAT-3]
        raise FormatError("out_of_range", r.at, "2^64 codes or more")
    budget.span(count, r.at)                                                     # [LIM-3]
    codes = nested(r, count, tables, budget)
    return "latent", {"model": model.hex(), "shape": shape, "codes": [f"{c:08x}" for c in codes]}


def values_low_rank(r, m, cx, tables, budget):
    at = r.at
    rows, cols, rank = r.varint(), r.varint(), r.varint(1)
    if cx.support_id != 1 or rows * cols != cx.scope.n:                          # [LRK-1]
        raise FormatError("count_mismatch", at, f"{rows} x {cols} values for {cx.scope.n} elements")
    if rows * rank >> 64 or cols * rank >> 64:                                   # [LRK-3]
        raise FormatError("out_of_range", at, "2^64 factors or more")
    budget.span((rows + cols) * rank + rows * cols * rank, at)                   # [LIM-3]
    p = nested(r, rows * rank, tables, budget, with_length=True)
    q = nested(r, cols * rank, tables, budget)
    p, q = [to_double("f32", x) for x in p], [to_double("f32", x) for x in q]
    out = []
    for i in range(rows):
        for j in range(cols):
            total = 0.0
            for t in range(rank):
                total = total + p[i * rank + t] * q[j * rank + t]
            out.append(to_number(total))
    return "numbers", out


FIXED = 256                                         # bits after the binary point in the integers below


@functools.cache
def fixed_pi():
    """Returns pi in fixed point, by Machin's formula: pi = 16 arctan(1/5) - 4 arctan(1/239)."""
    def arctan_of_inverse(x):
        total, power, i = 0, (1 << FIXED + 16) // x, 1
        while power:
            total += power // i if i % 4 == 1 else -(power // i)
            power //= x * x
            i += 2
        return total
    return 16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239) >> 16


@functools.cache
def dct_numbers(n):
    """Returns sqrt(1/n), then sqrt(2/n) cos(pi k / 2n) for k = 0 .. n-1: values/dct.md.

    Each is the nearest binary64.
    """
    def nearest(x, bits):
        return x / (1 << bits)                      # Python divides integers with one rounding

    root = math.isqrt((2 << 2 * FIXED) // n)
    out = [nearest(math.isqrt((1 << 2 * FIXED) // n), FIXED)]
    for k in range(n):
        x = fixed_pi() * k // (2 * n)
        cosine, term, i = 0, 1 << FIXED, 0
        while term:
            cosine += term
            term = -(term * x * x // ((i + 1) * (i + 2))) >> 2 * FIXED
            i += 2
            if term == -1:                          # rounding down turns a vanishing negative term into -1
                break
        out.append(nearest(root * cosine, 2 * FIXED))
    return out


@functools.cache
def dct_basis(n):
    """Returns c(n, u, i) as a list of rows u."""
    numbers = dct_numbers(n)
    scaled = {k: numbers[1 + k] for k in range(n)}
    scaled[n] = 0.0
    out = [[numbers[0]] * n]
    for u in range(1, n):
        row = []
        for i in range(n):
            k = u * (2 * i + 1) % (4 * n)
            if k > 2 * n:
                k = 4 * n - k                       # cos(2 pi - x) = cos x
            row.append(scaled[k] if k <= n else -scaled[2 * n - k])
        out.append(row)
    return out


def values_dct(r, m, cx, tables, budget):
    at = r.at
    rows, cols = r.varint(), r.varint()
    n = cx.scope.n
    if cx.support_id != 1 or rows * cols != n:                                   # [DCT-1]
        raise FormatError("count_mismatch", at, f"{rows} x {cols} values for {n} elements")
    sides = []
    for dim in (rows, cols):
        side_at = r.at
        sides.append(r.varint(1, 128))
        if dim % sides[-1]:                                                      # [DCT-2]
            raise FormatError("out_of_range", side_at, f"chunks of {sides[-1]} in {dim}")
    tall, wide = sides
    budget.span((n * (tall + wide) + 15) // 16, at)                              # [LIM-3]
    at = r.at
    kind = r.varint()
    if not 1 <= kind <= 7:                                                       # [DCT-3]
        raise FormatError("out_of_range", at, f"support {kind} of coefficients")
    inner = r.part(r.varint())
    positions = SUPPORT_READERS[kind](inner, n, cx)
    inner.finish()                                                               # [CNV-6]
    kept = nested(r, len(positions), tables, budget, kinds=(1, 2, 3, 4, 5, 6, 7, 8))
    coefficients = [0.0] * n
    for p, x in zip(positions, kept):
        coefficients[p] = to_double("f32", x)
    down, across, area = dct_basis(tall), dct_basis(wide), tall * wide
    out = [0] * n
    for number in range(n // area):
        chunk = coefficients[number * area:(number + 1) * area]
        inside = []                                 # T(u, j)
        for u in range(tall):
            for j in range(wide):
                total = 0.0
                for v in range(wide):
                    total = total + chunk[u * wide + v] * across[v][j]
                inside.append(total)
        top, left = number // (cols // wide) * tall, number % (cols // wide) * wide
        for i in range(tall):
            for j in range(wide):
                total = 0.0
                for u in range(tall):
                    total = total + down[u][i] * inside[u * wide + j]
                out[(top + i) * cols + left + j] = to_number(total)
    return "numbers", out


VALUES_READERS = {1: values_floats, 2: values_constant, 3: values_sign, 4: values_pow2, 5: values_levels,
                  6: values_affine, 7: values_codebook, 8: values_minifloat, 9: values_planes, 10: values_ulp,
                  11: values_latent, 12: values_low_rank, 13: values_dct}


class Block:
    def __init__(self, r, manifest, cx_of):
        self.at = r.at
        inner = r.part(r.varint())
        self.scope = Scope(inner, manifest)
        cx = cx_of(self.scope, self.at)
        id_at = inner.at
        self.support_id, self.values_id = inner.varint(), inner.varint()
        if self.support_id not in SUPPORTS or self.values_id not in VALUES:      # [BLK-4] [PRF-1]
            raise FormatError("unsupported", id_at, f"support {self.support_id}, values {self.values_id}")
        cx.support_id = self.support_id
        self.positions = cx.positions = read_support(inner, self.support_id, inner.varint(), cx)
        at = inner.at
        if cx.is_by_base() and self.values_id not in (1, 9, 10):                 # [CLS-7]
            raise FormatError("out_of_range", at, "numbers in a support that is classed by the base")
        self.form, self.data = VALUES_READERS[self.values_id](inner, len(self.positions), cx, cx.tables, cx.budget)
        inner.finish()                                                           # [CNV-6]
        gives_numbers = self.form in ("numbers", "latent")
        if gives_numbers and self.scope.dtype not in FLOATS:                     # [BLK-5]
            raise FormatError("out_of_range", at, f"numbers for {self.scope.dtype}")
        if not gives_numbers and self.scope.add:                                 # [BLK-5]; ulp gives bits
            raise FormatError("out_of_range", at, "add with bits")
        if gives_numbers and cx.is_by_base():                                    # [CLS-7]
            raise FormatError("out_of_range", at, "numbers in a support that is classed by the base")
        self.length = inner.end - self.at

    def describe(self):
        if self.form == "bits":
            digits = BITS[self.scope.dtype] // 4
            numbers = [f"{v:0{digits}x}" for v in self.data]
        elif self.form == "numbers":
            numbers = [f"{v:08x}" for v in self.data]
        elif self.form == "diffs":
            numbers = {"diffs": self.data}
        else:
            numbers = self.data
        by_base = isinstance(self.positions, ByBase)
        out = {"scope": self.scope.describe(), "support": SUPPORTS[self.support_id], "values": VALUES[self.values_id],
               "positions": None if by_base or self.support_id == 1 else list(self.positions), "numbers": numbers}
        if by_base:
            out["groups"] = [[group.classes, group.count] for group in self.positions.groups]
        return out


# -------------------------------------------------------------------------------------------------- 4. Frames

class Run:
    """An entry of a delta or of a sum delta: sections 6 and 6.1."""

    def __init__(self, r):
        self.first, self.more = r.varint(), r.varint()
        self.base, self.result = r.take(16), r.take(16)
        self.end = self.first + self.more + 1

    def describe(self):
        return {"first": self.first, "more": self.more, "base": self.base.hex(), "result": self.result.hex()}


def spans(runs):
    """Returns the tensors of `runs` as few ranges (first, end)."""
    out = []
    for run in runs:
        if out and out[-1][1] == run.first:
            out[-1] = out[-1][0], run.end
        else:
            out.append((run.first, run.end))
    return out


class Update:
    """The parts of one update that have arrived so far."""

    def __init__(self, fields):
        self.fields, self.next_part, self.end = fields, 0, (0, 0)
        self.blocks, self.listed = [], None       # listed: for each part, the runs of both attributes or None


class Decoder:
    def __init__(self, data, limits=None, known=None):
        self.data = bytes(data)
        self.limits = {**LIMITS, **(limits or {})}
        self.manifests, self.sets, self.models = {}, {}, {}
        self.frames, self.met, self.met_updates, self.updates = [], [], [], []
        self.open = None
        known = known or {}
        self.occurred = None                      # definitions in the stream; None while known ones are read
        for body in known.get("manifests", []):
            self.manifest(Reader(body, 0, len(body)))
        for body in known.get("index_sets", []):
            self.index_set(Reader(body, 0, len(body)))
        self.occurred = collections.Counter()

    # 3. Stream

    def stream(self):
        data = self.data
        if data[:8] != b"\x89GCU\r\n\x1a\n"[:len(data)]:                         # [STR-1]
            raise FormatError("bad_magic", 0, "not a gcodec stream")
        if len(data) < 16:                                                       # [STR-5]
            raise FormatError("truncated", len(data), "the input ends in the preamble")
        if zlib.crc32(data[:12]) != int.from_bytes(data[12:16], "little"):       # [STR-2]
            raise FormatError("checksum_mismatch", 12, "preamble")
        if data[8] != 1:                                                         # [STR-3] [STR-4]
            raise FormatError("unsupported", 8, f"version {data[8]}")
        if data[10:12] != b"\0\0":                                               # [CNV-5]
            raise FormatError("reserved_bits", 10, "flags of the stream")
        at, self.chain, self.index_at, ended = 16, 0, 0, False
        while not (ended and at == len(data)):                                   # [STR-5] [STR-6]
            ended, at = self.frame(at)
        return {"frames": self.frames}

    # 4. Frames

    def frame(self, at):
        header = self.data[at:at + 24]
        if header[:4] != b"\xd3gcf"[:len(header)]:                               # [FRM-1] [STR-6]
            raise FormatError("bad_sync", at, "no sync word")
        if len(header) < 24:                                                     # [STR-5]
            raise FormatError("truncated", len(self.data), "the input ends in a header, or where one is needed")
        if zlib.crc32(header[:20]) != int.from_bytes(header[20:24], "little"):   # [FRM-2]
            raise FormatError("checksum_mismatch", at + 20, "frame header")
        kind, flags = int.from_bytes(header[4:6], "little"), int.from_bytes(header[6:8], "little")
        length, crc = int.from_bytes(header[8:16], "little"), int.from_bytes(header[16:20], "little")
        name = FRAMES.get(kind)
        if name is None and not kind & 0x8000:                                   # [FRM-5] [PRF-1]
            raise FormatError("unsupported", at + 4, f"frame kind {kind:#06x}")
        if name is not None and flags & ~(1 if name == "update" else 0):         # [CNV-5]
            raise FormatError("reserved_bits", at + 6, f"frame flags {flags:#06x}")
        if length > self.limits["max_frame_bytes"]:                              # [LIM-1]
            raise FormatError("limit", at + 8, f"a body of {length} bytes")
        body, end = at + 24, at + 24 + length
        if end > len(self.data):                                                 # [STR-5] [FRM-6]
            raise FormatError("truncated", len(self.data), "the input ends in a body")
        if zlib.crc32(self.data[body:end]) != crc:                               # [FRM-3]
            raise FormatError("checksum_mismatch", at + 16, "frame body")
        if self.index_at != 0 and name != "end":                                 # [IDX-2]
            raise FormatError("misplaced", at, "a frame between an index frame and its end frame")
        r = Reader(self.data, body, end)
        if name is None:                                                         # [FRM-4]
            self.frames.append({"kind": "skipped", "id": kind})
        else:
            self.frame_at, self.frame_flags = at, flags
            self.frames.append(getattr(self, name)(r))
            r.finish()                                                           # [CNV-6]
        self.met.append((kind, 24 + length))
        self.chain = zlib.crc32(header[:20], self.chain)
        return name == "end", end

    def define(self, table, identity, value, at):
        if identity not in table:
            if self.occurred is not None:
                self.occurred[id(table)] += 1
                if self.occurred[id(table)] > self.limits["max_definitions"]:    # [LIM-1]
                    raise FormatError("limit", at, "more definitions than the limit")
            table[identity] = value

    # 4.1 Manifest

    def manifest(self, r):
        body = r.at
        count = r.varint()
        if count > self.limits["max_tensors"]:                                   # [LIM-1]
            raise FormatError("limit", body, f"{count} tensors")
        if count > r.left():                                                     # [LIM-2]
            raise FormatError("length_mismatch", body, f"{count} tensors in {r.left()} bytes")
        tensors, names, previous, elements, bits, name_bytes = [], set(), b"", 0, 0, 0
        for _ in range(count):
            at = r.at
            prefix_len = r.varint()
            if prefix_len > len(previous):                                       # [MAN-3]
                raise FormatError("out_of_range", at, f"a prefix of {prefix_len} of {len(previous)} bytes")
            suffix = r.take(r.varint())
            raw = previous[:prefix_len] + suffix
            if not 1 <= len(raw) <= 4096:                                        # [MAN-1]
                raise FormatError("out_of_range", at, f"a name of {len(raw)} bytes")
            name = utf8(raw, at)                                                 # [MAN-1]
            name_bytes += len(raw)
            if name_bytes > self.limits["max_inflated_bytes"]:                   # [LIM-3]
                raise FormatError("limit", at, f"names of {name_bytes} bytes")
            common = len(os.path.commonprefix([raw, previous]))
            if prefix_len != common:                                             # [MAN-3]
                raise FormatError("not_canonical", at, f"a prefix of {prefix_len}, but {common} bytes are shared")
            if name in names:                                                    # [MAN-2]
                raise FormatError("duplicate_name", at, name)
            names.add(name)
            previous = raw
            type_at = r.at
            dtype, width = DTYPES.get(r.u8(), (None, 0))
            if dtype is None:                                                    # [MAN-5]
                raise FormatError("unsupported", type_at, "unknown element type")
            shape_at = r.at
            shape = [r.varint() for _ in range(r.varint(0, 32))]
            tensor = Tensor(name, dtype, shape, None, None)
            elements += tensor.count
            bits += tensor.count * width
            if tensor.count >> 64 or elements >> 64 or bits >> 64:               # [MAN-4]
                raise FormatError("out_of_range", shape_at, "2^64 elements or bits")
            extras = r.flags(0b11)                                               # [CNV-5]
            if extras & 1:
                at = r.at
                tensor.matrix = [r.varint(), r.varint()]
                if tensor.matrix[0] * tensor.matrix[1] != tensor.count:          # [MAN-6]
                    raise FormatError("out_of_range", at, "the matrix view has a different number of elements")
            if extras & 2:
                tensor.shard = []
                for dim in shape:
                    at = r.at
                    tensor.shard.append([r.varint(), r.varint()])
                    if tensor.shard[-1][1] + dim > tensor.shard[-1][0]:          # [MAN-6]
                        raise FormatError("out_of_range", at, "the shard extends beyond the tensor")
            tensors.append(tensor)
        identity = blake3(r.data[body:r.end])
        self.define(self.manifests, identity, tensors, body)
        return {"kind": "manifest", "id": identity.hex(), "tensors": [t.describe() for t in tensors]}

    def manifest_ref(self, r):
        at = r.at
        identity = r.take(32)
        if identity not in self.manifests:                                       # [UPD-1]
            raise FormatError("unknown_reference", at, f"manifest {identity.hex()}")
        return identity, self.manifests[identity]

    # 4.2 Update

    def update(self, r):
        body = r.at
        last = bool(self.frame_flags & 1)
        identity, manifest = self.manifest_ref(r)
        keys = ("step", "round", "sender", "world", "contributors", "inner_steps")
        fields = {"manifest": identity.hex(), **{key: r.varint() for key in keys}}
        fields["reduction"] = r.u8((0, 1, 2))                                    # [CNV-4]
        at = r.at
        part = r.varint()
        update = self.open or Update(fields)
        if part != update.next_part:                                             # [UPD-2]
            raise FormatError("misplaced", at, f"part {part}, not {update.next_part}")
        if fields != update.fields:                                              # [UPD-3]
            raise FormatError("misplaced", body, "a part of another update")
        out = {"kind": "update", **fields, "part": part, "last": last}
        lists = {2: None, 4: None}                                               # runs: delta, sum delta
        previous = 0
        for _ in range(r.varint()):
            at = r.at
            number = r.varint(1)                                                 # [UPD-4], id 0
            if number <= previous:                                               # [UPD-4]
                raise FormatError("not_ascending", at, f"attribute {number} after {previous}")
            previous = number
            inner = r.part(r.varint())
            if number == 1:
                label = utf8(inner.take(inner.left()), inner.at)                 # [UPD-7]
                out.update({"label": label} if label else {})
            elif number in lists and number in ATTRIBUTES:
                lists[number] = self.delta(inner, manifest, is_sum=number == 4)
                out["delta" if number == 2 else "sums"] = [run.describe() for run in lists[number]]
            elif number % 2 == 0:                                                # [UPD-5] [PRF-1]
                raise FormatError("unsupported", at, f"attribute {number}")
        kinds = [runs is not None for runs in lists.values()]
        if part > 0 and kinds != [runs is not None for runs in update.listed[0].values()]:   # [UPD-3]
            raise FormatError("misplaced", body, "only some parts of the update have a delta")
        is_delta, runs = any(kinds), [run for some in lists.values() for run in some or []]
        tables = [Table(r) for _ in range(r.varint(0, 64))]
        at = r.at
        block_count = r.varint()
        if block_count > self.limits["max_blocks"]:                              # [LIM-1]
            raise FormatError("limit", at, f"{block_count} blocks")
        if block_count > r.left():                                               # [LIM-2]
            raise FormatError("length_mismatch", at, f"{block_count} blocks in {r.left()} bytes")
        head = self.data[body:r.at]
        budget = Budget(self.limits)
        budget.runs(runs, at)                                                    # [LIM-3]
        present = [some for some in lists.values() if some is not None]
        listed = [(some, [run.first for run in some], spans(some)) for some in present]

        def cx_of(scope, offset):
            budget.scope(scope, offset)                                          # [LIM-3]
            if not scope.add:
                if scope.begin() < update.end:                                   # [UPD-6]
                    raise FormatError("not_ascending", offset, "blocks are not in order, or overlap")
                update.end = scope.end()
            in_one_run = is_delta
            for some, firsts, ranges in listed:
                i = bisect.bisect_right(firsts, scope.tensor) - 1
                in_one_run &= i >= 0 and scope.tensor + scope.tensors <= some[i].end
                i = bisect.bisect_right(ranges, (scope.tensor, math.inf)) - 1
                if i < 0 or ranges[i][1] < scope.tensor + scope.tensors:         # [DEL-2] [SUM-3]
                    raise FormatError("unknown_reference", offset, "a tensor that is not listed in the delta")
            return Context(self, identity, scope, tables, budget, has_delta=is_delta, in_one_run=in_one_run)

        blocks = [Block(r, manifest, cx_of) for _ in range(block_count)]
        out["blocks"] = [b.describe() for b in blocks]
        update.blocks += blocks
        update.listed = [*(update.listed or []), lists]
        update.next_part += 1
        self.open = None if last else update
        if last:
            self.updates.append((identity, update))
        listed = [(b.scope.tensor, b.scope.tensors, b.length, zlib.crc32(self.data[b.at:b.at + b.length]))
                  for b in blocks]
        self.met_updates.append((fields["step"], fields["sender"], len(head), zlib.crc32(head), listed))
        return out

    # 6. Deltas

    def delta(self, r, manifest, is_sum):
        out, end = [], 0
        for _ in range(r.varint()):
            at = r.at
            run = Run(r)
            if is_sum and max(lanes(run.base) + lanes(run.result)) >= P:         # [SUM-2]
                raise FormatError("out_of_range", at, "a lane of 2^31 - 1 or more")
            if run.first < end:                                                  # [DEL-1] [SUM-1]
                raise FormatError("not_ascending", at, f"tensor {run.first} after {end - 1}")
            end = run.end
            if end > len(manifest):                                              # [DEL-1] [SUM-1]
                raise FormatError("out_of_range", at, f"tensor {end - 1} of {len(manifest)}")
            out.append(run)
        r.finish()                                                               # [CNV-6]
        return out

    # 4.3 Index set

    def index_set(self, r):
        body = r.at
        identity, manifest = self.manifest_ref(r)                                # [ISF-1]
        step, leader, world = r.varint(), r.varint(), r.varint()
        at = r.at
        scope = Scope(r, manifest, add_allowed=False)                            # [ISF-1]
        budget = Budget(self.limits)
        budget.span(scope.n, at)                                                 # [LIM-3]
        id_at = r.at
        support_id = r.varint()
        if support_id not in SUPPORTS:                                           # [BLK-4]
            raise FormatError("unsupported", id_at, f"support {support_id}")
        if support_id == 8:                                                      # [ISF-2]
            raise FormatError("out_of_range", id_at, "an index set of kind set")
        cx = Context(self, identity, scope, [], budget, is_index_set=True)       # [ISF-2]: no shared tables
        positions = read_support(r, support_id, r.left(), cx)
        own = blake3(r.data[body:r.end])
        self.define(self.sets, own, {"manifest": identity, "scope": scope, "positions": positions}, body)
        return {"kind": "index_set", "id": own.hex(), "manifest": identity.hex(), "step": step, "leader": leader,
                "world": world, "scope": scope.describe(), "positions": None if support_id == 1 else list(positions)}

    # 4.4 Model

    def model(self, r):
        body = r.at
        identity = r.take(32)
        out = {"kind": "model", "id": identity.hex(), "format": r.text(), "name": r.text()}
        len_at = r.at
        weights_len = r.varint()
        out["storage"] = storage = r.u8((0, 1, 2))                               # [CNV-4]
        out["weights_len"] = weights_len
        if storage == 0:
            out["location"] = r.text()
        elif storage == 1:
            if r.left() != weights_len:                                          # [MOD-1]
                raise FormatError("length_mismatch", r.at, f"{r.left()} bytes of weights, not {weights_len}")
            at = r.at
            if blake3(r.take(weights_len)) != identity:                          # [MOD-1]
                raise FormatError("not_canonical", at, "the weights have a different hash")
        else:
            plain, at = self.inflate(r, weights_len, len_at)
            if blake3(plain) != identity:                                        # [MOD-1]
                raise FormatError("not_canonical", at, "the weights have a different hash")
            out["storage"] = 1                      # vectors/README.md: 1 means inline, compressed or not
        self.define(self.models, identity, True, body)
        return out

    def inflate(self, r, length, length_at):
        """Decompresses the zstd frame that is the rest of the body, to `length` bytes: section 4.5.

        Returns the bytes and the offset of the zstd frame.
        """
        limit = self.limits["max_inflated_bytes"]
        if length > limit:                                                       # [LIM-1]
            raise FormatError("limit", length_at, f"zstd declares {length} bytes")
        at = r.at
        data = r.take(r.left())
        if zstd is None:
            raise FormatError("unsupported_here", at, "zstd needs Python 3.14 or backports.zstd")
        window = zstd_window(data)
        if window is None:                                                       # [MET-2]
            raise FormatError("length_mismatch", at, "not a zstd frame")
        if window > limit:                                                       # [LIM-1]
            raise FormatError("limit", at, f"a zstd window of {window} bytes")
        largest = zstd.DecompressionParameter.window_log_max
        # The window has its own limit above; one byte more than `length` detects a frame that is too long.
        inflater = zstd.ZstdDecompressor(options={largest: largest.bounds()[1]})
        try:
            plain = inflater.decompress(data, length + 1)
            while len(plain) <= length and not inflater.eof:
                more = inflater.decompress(b"", length + 1 - len(plain))
                if not more and not inflater.eof:
                    break                           # the zstd frame is truncated
                plain += more
        except zstd.ZstdError as e:                                              # [MET-2]
            raise FormatError("length_mismatch", at, f"corrupt zstd: {e}") from None
        if len(plain) != length or not inflater.eof or inflater.unused_data:     # [MET-2] [MOD-1]
            raise FormatError("length_mismatch", at, f"zstd that does not decompress to exactly {length} bytes")
        return plain, at

    # 4.5 Metadata

    def metadata(self, r):
        if r.u8((0, 1)) == 1:
            length_at = r.at
            plain, at = self.inflate(r, r.varint(), length_at)
            try:
                inner = Reader(plain, 0, len(plain))
                out = self.entries(inner)
                inner.finish()                                                   # [CNV-6]
            except FormatError as e:                # decompressed bytes have no offset in the stream
                raise FormatError(e.kind, at, e.what) from None
            return out
        return self.entries(r)

    def entries(self, r):
        at = r.at
        count = r.varint()
        if count > r.left():                                                     # [LIM-2]
            raise FormatError("length_mismatch", at, f"{count} entries in {r.left()} bytes")
        entries, previous = {}, None
        for _ in range(count):
            at = r.at
            key = r.text()
            if previous is not None and key.encode() <= previous:                # [MET-1]
                raise FormatError("not_ascending", at, f"key {key!r}")
            previous = key.encode()
            entries[key] = r.text()
        return {"kind": "metadata", "entries": entries}

    # 4.6 Index

    def index(self, r):
        start = r.at

        def same(at, got, want, what):
            if got != want:                                                      # [IDX-1]
                raise FormatError("not_canonical", at, f"{what}: the index says {got}, the stream has {want}")

        same(start, r.varint(), len(self.met), "frame count")
        frames = []
        for met in self.met:
            at = r.at
            frames.append([r.varint(), r.varint()])
            same(at, tuple(frames[-1]), met, "frame")
        for step, sender, head_len, head_crc, blocks in self.met_updates:
            at = r.at
            same(at, (r.varint(), r.varint(), r.varint(), r.uint(4), r.varint()),
                 (step, sender, head_len, head_crc, len(blocks)), "update")
            for block in blocks:
                at = r.at
                same(at, (r.varint(), r.varint(), r.varint(), r.uint(4)), block, "block")
        self.index_at = self.frame_at
        return {"kind": "index", "frames": frames}

    # 4.7 End

    def end(self, r):
        if self.open is not None:                                                # [UPD-2]
            raise FormatError("misplaced", self.frame_at, "an end frame before the last part of an update")
        at = r.at
        count, index_at, chain, tail = r.uint(8), r.uint(8), r.uint(4), r.take(4)
        if tail != b"GCUE":                                                      # [CNV-4]
            raise FormatError("out_of_range", at + 20, "the tail is not GCUE")
        if count != len(self.met):                                               # [END-1]
            raise FormatError("count_mismatch", at, f"{count} frames, the stream has {len(self.met)}")
        if index_at != self.index_at:                                            # [END-2]
            raise FormatError("out_of_range", at + 8, f"index_offset {index_at}, not {self.index_at}")
        if chain != self.chain:                                                  # [END-1]
            raise FormatError("checksum_mismatch", at + 16, "chain of headers")
        self.index_at = 0
        return {"kind": "end", "frame_count": count, "index_offset": index_at}

    # 5. Applying an update

    def apply(self, step, base):
        updates = [u for u in self.updates if step is None or u[1].fields["step"] == step]
        if not updates:
            raise FormatError("unknown_reference", len(self.data), "no such update")
        identity, update = updates[-1]
        manifest = self.manifests[identity]
        # What a tensor of Python numbers takes is this reader's own matter.
        Budget(self.limits).alloc(sum(t.count for t in manifest), 8, 0)
        before = [[0] * t.count for t in manifest]
        if any(runs is not None for runs in update.listed[0].values()):
            for i, t in enumerate(manifest):
                given = (base or {}).get(t.name)
                if given is not None and (given["dtype"], list(given["shape"])) == (t.dtype, t.shape):
                    before[i] = unpack(t, bytes.fromhex(given["data"]))
                else:                                                            # [DEL-4]
                    raise FormatError("unknown_reference", 0, f"no base for {t.name}")
            self.compare(manifest, update, before, "base")
        after = [list(values) for values in before]
        for block in update.blocks:
            apply_block(manifest, after, block)
        self.compare(manifest, update, after, "result")
        return {t.name: {"dtype": t.dtype, "shape": t.shape, "data": pack(t, x).hex()}
                for t, x in zip(manifest, after)}

    def compare(self, manifest, update, tensors, which):
        """Compares the base digests or the result digests of an update: [DEL-4] [SUM-4]."""
        self.compare_runs(manifest, update, 2, which, tensors, tensor_digest,
                          lambda own: own[0] if len(own) == 1 else blake3(b"".join(own))[:16])
        self.compare_runs(manifest, update, 4, which, tensors, sum_share,
                          lambda own: sum_bytes([sum(lane) for lane in zip(*own)]))

    def compare_runs(self, manifest, update, number, which, tensors, of_tensor, of_run):
        """Compares the runs of one attribute. `of_run`: the digest of tensors with these digests."""
        runs = [run for lists in update.listed for run in lists[number] or []]
        known = {}
        for run in runs:
            key = run.more, run.base, run.result
            if known.setdefault(run.first, key) != key:                          # [DEL-5] [SUM-5]
                raise FormatError("checksum_mismatch", 0, f"two parts list {manifest[run.first].name} differently")
        ends = sorted((first, first + key[0]) for first, key in known.items())
        if any(b[0] <= a[1] for a, b in zip(ends, ends[1:])):                    # [DEL-5] [SUM-5]
            raise FormatError("checksum_mismatch", 0, "runs of two parts overlap")
        digest_of = functools.cache(lambda i: of_tensor(manifest[i], tensors[i]))
        for run in runs:
            if of_run([digest_of(i) for i in range(run.first, run.end)]) != getattr(run, which):   # [DEL-4] [SUM-4]
                raise FormatError("checksum_mismatch", 0, f"{which} of {manifest[run.first].name} and {run.more} more")


def pack(tensor, values):
    """Returns the row of elements of a tensor: section 1."""
    width = BITS[tensor.dtype]
    if width >= 8:
        return b"".join(v.to_bytes(width // 8, "little") for v in values)
    values = values + [0] * (len(values) % 2)
    return bytes(values[i] | values[i + 1] << 4 for i in range(0, len(values), 2))


def unpack(tensor, data):
    width = BITS[tensor.dtype]
    plane = Plane(data)
    if len(data) != (tensor.count * width + 7) // 8:
        raise FormatError("length_mismatch", 0, f"the base of {tensor.name} has {len(data)} bytes")
    return [plane.field(width) for _ in range(tensor.count)]


def zstd_window(frame):
    """Returns the window size that a zstd frame demands, in bytes: RFC 8878, section 3.1.1.1.2.

    Returns 0 if the window is the content, and None if `frame` is not a zstd frame.
    """
    if frame[:4] != bytes.fromhex("28b52ffd") or len(frame) < 6:
        return None
    if frame[4] & 0x20:                             # single segment: the content size replaces the window
        return 0
    base = 1 << 10 + (frame[5] >> 3)
    return base + base // 8 * (frame[5] & 7)


def varint_bytes(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tensor_digest(tensor, values):
    dims = [len(tensor.shape), *tensor.shape]
    head = bytes([DTYPE_IDS[tensor.dtype]]) + b"".join(map(varint_bytes, dims))
    return blake3(head + pack(tensor, values))[:16]


# 6.1 Sum digests

P = 2**31 - 1


def lanes(data):
    return [int.from_bytes(data[i:i + 4], "little") for i in range(0, 16, 4)]


def sum_bytes(numbers):
    return b"".join((n % P).to_bytes(4, "little") for n in numbers)


def nonzero(random):
    return 1 + (random >> 1) % (P - 1)


def splitmix(n):
    """Returns output n of SplitMix64 with the seed 0."""
    mask = 2**64 - 1
    z = (n + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return z ^ z >> 31


@functools.cache
def keys(axis, index):
    """Returns the keys of all lanes; axis 0 is the last."""
    def factor(level, lane, number):
        return nonzero(splitmix(((2 * axis + level) * 4 + lane) << 56 | number))
    index %= 2**64
    return [factor(0, lane, index % 2**16) * factor(1, lane, index >> 16) % P for lane in range(4)]


def sum_digest(dtype, shape, first, values):
    """Returns D of the elements of a tensor or shard whose first element has the indices `first`."""
    shape, first = (shape, first) if shape else ([1], [0])
    width = BITS[dtype]
    size = min(width, 16)
    units = width // size
    total = [0] * 4
    for flat, bits in enumerate(values):
        outer, rest = [1] * 4, flat
        for axis, (dim, start) in enumerate(zip(reversed(shape), reversed(first))):
            rest, index = divmod(rest, dim)
            if axis == 0:
                last = index + start
            else:
                outer = [a * b % P for a, b in zip(outer, keys(axis, index + start))]
        for part in range(units):
            s = bits >> part * size & (1 << size) - 1
            if size > 4 and s >> size - 1:
                s -= 1 << size
            own = keys(0, last * units + part)
            total = [(t + a * b * (s + 2**16)) % P for t, a, b in zip(total, outer, own)]
    return total


def name_of_whole(tensor):
    """Returns a shard's name without its ending, if that is the shard's place."""
    name, bracket, ending = tensor.name.rpartition("[")
    if not (name and bracket and ending.endswith("]")):
        return tensor.name
    ranges, dims = ending[:-1].split(","), list(zip(tensor.shape, tensor.shard))
    if len(ranges) > len(dims):
        return tensor.name
    for text, (dim, (whole, first)) in zip(ranges, dims):
        if text != f"{first}:{first + dim}" and not (text == ":" and dim == whole):
            return tensor.name
    return name


def sum_share(tensor, values):
    """Returns S of a tensor or shard, in all lanes."""
    name, shape, first = tensor.name, tensor.shape, [0] * len(tensor.shape)
    if tensor.shard is not None:
        name, shape, first = name_of_whole(tensor), [d for d, _ in tensor.shard], [o for _, o in tensor.shard]
    head = bytes([DTYPE_IDS[tensor.dtype]]) + b"".join(n.to_bytes(8, "little") for n in [len(shape), *shape])
    digest = blake3(b"gcodec sum digest 1" + head + name.encode())
    weights = [nonzero(int.from_bytes(digest[i:i + 8], "little")) for i in range(0, 32, 8)]
    return [w * d % P for w, d in zip(weights, sum_digest(tensor.dtype, tensor.shape, first, values))]


def ulp_order(u, width, is_float):
    """Returns o(u) of values/ulp.md."""
    top, mask = 1 << (width - 1), (1 << width) - 1
    if not is_float:
        return u
    return ~u & mask if u & top else u | top


def ulp_unorder(o, width, is_float):
    """Returns the u with o(u) = o."""
    top, mask = 1 << (width - 1), (1 << width) - 1
    if not is_float:
        return o
    return o & ~top if o & top else ~o & mask


def apply_block(manifest, after, block):
    if block.form == "latent":                                                   # [LAT-2]
        raise FormatError("unknown_reference", block.at, f"model {block.data['model']}")
    scope = block.scope
    dtype = scope.dtype
    width, is_float = BITS[dtype], dtype in FLOATS
    positions = block.positions
    if isinstance(positions, ByBase):
        mine = after[scope.tensor:scope.tensor + scope.tensors]     # as earlier blocks left the base
        base = itertools.chain.from_iterable(t[scope.start:scope.start + n] for t, n in zip(mine, scope.counts))
        positions = positions.positions(dtype, base)
    for p, t, v in zip(positions, scope.tensor_of(positions), block.data):
        at = p - scope.firsts[t] + scope.start
        old = after[scope.tensor + t][at]
        if block.form == "diffs":
            order = ulp_order(old, width, is_float)
            v = ulp_unorder((order + v) % (1 << width), width, is_float)
        elif block.form == "numbers":
            v = element_plus_number(dtype, old, v) if scope.add else number_to_element(dtype, v)
        after[scope.tensor + t][at] = v


# -------------------------------------------------------------------------------------------------- interface

def decode(data, limits=None, known=None):
    """Returns a description of the stream.

    `known` holds bodies of frames that do not come from the stream:
    {"manifests": [body, ..], "index_sets": [body, ..]}.
    """
    return Decoder(data, limits, known).stream()


def tensors(data, step=None, base=None, limits=None, known=None):
    """Returns the dense tensors after the last update, or after the last update of `step`."""
    decoder = Decoder(data, limits, known)
    decoder.stream()
    return decoder.apply(step, base)


def run_vector(vector):
    """Returns None if the vector passes, else a description of the failure."""
    stage = "decode"                                # section 1.1
    data, limits = bytes.fromhex(vector["hex"]), vector.get("limits")
    try:
        got = decode(data, limits)
        made, stage = None, "tensors"
        if "tensors" in vector or vector.get("error", {}).get("stage") == "tensors":
            made = tensors(data, base=vector.get("base"), limits=limits)
    except FormatError as e:
        if e.kind == "unsupported_here":
            raise
        if vector["result"] == "valid":
            return f"refused: {e}"
        want = vector["error"]                      # without a kind, in fuzzing: any error
        if "kind" in want and (e.kind, stage) != (want["kind"], want["stage"]):
            return f"expected {want['kind']} in stage {want['stage']}, got {e} in stage {stage}"
        return None
    if vector["result"] == "invalid":
        return f"accepted, expected {vector['error'].get('kind', 'an error')}"
    got = json.loads(json.dumps(got))
    if "expected" in vector and got != vector["expected"]:
        return "different description: " + difference(got, vector["expected"])
    if "tensors" in vector and made != vector["tensors"]:
        return "different tensors: " + difference(made, vector["tensors"])
    return None


def difference(got, want, path="$"):
    """Describes the first difference between two JSON values."""
    if isinstance(got, dict) and isinstance(want, dict):
        for key in sorted(set(got) | set(want)):
            if key not in got or key not in want:
                return f"{path}.{key} is only in the {'expected' if key in want else 'actual'} value"
            if got[key] != want[key]:
                return difference(got[key], want[key], f"{path}.{key}")
    if isinstance(got, list) and isinstance(want, list):
        if len(got) != len(want):
            return f"{path}: got {len(got)} items, expected {len(want)}"
        for i, (a, b) in enumerate(zip(got, want)):
            if a != b:
                return difference(a, b, f"{path}[{i}]")
    return f"{path}: got {got!r}, expected {want!r}"


def keep_core():
    """Forgets all that the core profile leaves out: core.md."""
    core = ((FRAMES, (1, 2, 5, 0x8001, 0x8002)), (SUPPORTS, range(1, 5)), (VALUES, range(1, 7)), (CODINGS, range(3)),
            (SIGN_CODINGS, (0,)), (ATTRIBUTES, (1,)), (SCOPE_BITS, ()))
    for table, kept in core:
        for number in set(table) - set(kept):
            del table[number]


def run_core_vector(vector):
    """Returns None if a reader of the core profile may answer so: vectors/README.md."""
    if vector.get("core"):
        return run_vector(vector)
    refused = {"hex": vector["hex"], "limits": vector.get("limits"), "result": "invalid",
               "error": {"kind": "unsupported", "stage": "decode"}}
    wrong = run_vector(refused)
    if wrong is not None and vector["result"] == "invalid":
        return run_vector(vector)
    return wrong


def run_vectors(folder, strict, run):
    with open(os.path.join(folder, "index.json"), encoding="utf-8") as f:
        vectors = json.load(f)["vectors"]
    passed = failed = skipped = 0
    for vector in vectors:
        try:
            wrong = run(vector)
        except FormatError as e:
            skipped += 1
            print(f"SKIP {vector['id']}: {e.what}")
            continue
        except Exception as e:  # a crash of the decoder fails this vector, not the whole run
            wrong = f"{type(e).__name__}: {e}"
        if wrong is None:
            passed += 1
        else:
            failed += 1
            print(f"FAIL {vector['id']}: {wrong}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or (skipped and strict) else 0


def main():
    parser = argparse.ArgumentParser(description="Reference decoder of the gcodec wire format.")
    parser.add_argument("path", metavar="PATH", help="a stream, or with --vectors a folder with index.json")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--tensors", action="store_true", help="print the dense tensors after the last update")
    which.add_argument("--vectors", action="store_true", help="run the vectors of PATH/index.json")
    parser.add_argument("--no-skips", action="store_true", help="with --vectors: count a skipped vector as a failure")
    parser.add_argument("--step", type=int, help="with --tensors: use the last update of this step")
    parser.add_argument("--base", help="with --tensors: JSON file with the tensors that a delta changes")
    parser.add_argument("--profile", choices=("full", "core"), default="full", help="kinds that the decoder knows")
    args = parser.parse_args()
    if args.profile == "core":
        keep_core()
    if args.vectors:
        return run_vectors(args.path, args.no_skips, run_core_vector if args.profile == "core" else run_vector)
    with open(args.path, "rb") as f:
        data = f.read()
    base = None
    if args.base:
        with open(args.base, encoding="utf-8") as f:
            base = json.load(f)
    try:
        out = tensors(data, args.step, base) if args.tensors else decode(data)
    except FormatError as e:
        print(json.dumps({"error": {"kind": e.kind, "offset": e.offset, "what": e.what}}))
        return 0 if e.kind == "unsupported_here" else 1
    print(json.dumps(out, indent=1, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
