"""A writer of classed supports, views, signs and digests of runs, and random cases, for test_classed.py.

It sorts all elements by class, which the decoder avoids. From the decoder it takes types and digests only.
"""

import itertools
import math
import os
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import decoder as d  # noqa: E402
import test_decoder as made  # noqa: E402
from blake3 import blake3  # noqa: E402
from test_decoder import plane, table, v  # noqa: E402

ROWS, COLUMNS, MATRIX = 0x40, 0x80, 0x3F


# ------------------------------------------------------------------------------------------------- the writer

def frequencies(symbols):
    """Returns representable frequencies of the distinct symbols: 16 each, the rest for the first."""
    kinds = sorted(set(symbols))
    return {s: 16 if i else 4096 - 16 * (len(kinds) - 1) for i, s in enumerate(kinds)}


def segment(integers, tokens):
    coded = [made.token(x) if tokens else (x, []) for x in integers]
    symbols = [s for s, _ in coded]
    freq = frequencies(symbols)
    raw = plane([field for _, fields in coded for field in fields])
    return made.segment(symbols, freq, 0, raw, rest=min(freq))


def entropy(integers, tokens):
    return b"\0" + segment(integers, tokens)


def entropy_by_group(integers, tokens, counts):
    """Returns the integers with `segment_log` 1."""
    source = iter(integers)
    return b"\1" + b"".join(segment(list(itertools.islice(source, n)), tokens) for n in counts if n)


def ints(integers, coding=0):
    if not integers:
        return b""
    if coding:
        return bytes([coding]) + entropy(integers, coding == 1)
    width = max(integers).bit_length()
    return bytes([0, width]) + plane([(x, width) for x in integers])


def lane(symbols, freqs):
    """Encodes each symbol with its own frequencies: gcodec.md 7.3 with one lane."""
    x, words = 1 << 16, []
    for s, freq in reversed(list(zip(symbols, freqs, strict=True))):
        start = sum(f for other, f in freq.items() if other < s)
        if x >= freq[s] << 20:
            words.append(x & 0xFFFF)
            x >>= 16
        x = x // freq[s] * 4096 + start + x % freq[s]
    return v(len(words)) + struct.pack("<I", x) + b"".join(struct.pack("<H", w) for w in reversed(words))


class Group:
    def __init__(self, classes, shift, tokens, code=None):
        self.classes, self.shift, self.tokens = classes, shift, tokens
        self.code = shift | tokens << 6 if code is None else code


def gaps_of(group, first, class_of, chosen):
    """Returns the quotients, the low bits and the positions of a group, in the order of ranks."""
    elements = sorted((c, i) for i, c in enumerate(class_of) if first <= c < first + group.classes)
    quotients, low, order, last = [], [], [], -1
    for rank, (_, i) in enumerate(elements):
        if i not in chosen:
            continue
        width = max(0, group.shift - (elements[last + 1][0] - first))
        gap, last = rank - last - 1, rank
        quotients.append(gap >> width)
        low.append((gap & (1 << width) - 1, width))
        order.append(i)
    return quotients, low, order


class Support:
    """A classed support. `fields` are those between C and group_count."""

    def __init__(self, rule, fields, classes, groups, class_of, positions):
        self.rule, self.fields, self.classes, self.groups = rule, fields, classes, groups
        self.counts, self.quotients, self.low, self.order = [], [], [], []
        first, chosen = 0, set(positions)
        for group in groups:
            quotients, low, order = gaps_of(group, first, class_of, chosen)
            first += group.classes
            self.counts.append(len(order))
            self.quotients.append(quotients)
            self.low += low
            self.order += order

    def listed(self):
        out = v(len(self.groups))
        for group, count in zip(self.groups, self.counts):
            out += v(group.classes) + v(count) + (bytes([group.code]) if count else b"")
        return out

    def coded_quotients(self):
        out = b""
        for group, quotients in zip(self.groups, self.quotients):
            if group.tokens and quotients:
                out += entropy(quotients, True)
            else:
                out += plane([(1 << q, q + 1) for q in quotients])
        return out

    def bytes(self):
        return (bytes([self.rule, self.classes]) + self.fields + self.listed() + self.coded_quotients()
                + plane(self.low))


class Lists:
    """The fields of rule 2. `lists` holds (rows, columns) of each tensor; None if it has no list."""

    def __init__(self, views, levels, lists, tables, numbers, coding=0):
        self.views, self.levels, self.lists, self.tables, self.numbers = views, levels, lists, tables, numbers
        self.coding = coding

    def bytes(self):
        flat = [part for both in self.lists for part in both if part is not None]
        out = ints(self.views, self.coding) + ints(self.levels, self.coding) + bytes([len(self.tables)])
        out += b"".join(table(freq, max(freq, key=freq.get)) for freq in self.tables) + ints(self.numbers)
        if flat:
            freqs = [self.tables[j] for j, part in zip(self.numbers, flat, strict=True) for _ in part]
            out += lane([s for part in flat for s in part], freqs)
        return out


def places(code, shape, matrix, start, length):
    """Returns (row, column) of the elements start .. start + length of a tensor; rows count from `start`."""
    if code == 0:
        return [(0, 0)] * length
    a, b = code & 7, code >> 3 & 7
    if a == 7:
        shape, a, b = matrix, 1, 2
    rows = {index: i for i, index in enumerate(itertools.product(*map(range, shape[:a])))}
    columns = {index: i for i, index in enumerate(itertools.product(*map(range, shape[a:b])))}
    out = [(rows[index[:a]], columns[index[a:b]]) for index in itertools.product(*map(range, shape))]
    out = out[start:start + length]
    return [(row - out[0][0], column) for row, column in out]


# ----------------------------------------------------------------------------------------------- random cases

DTYPES = [4, 2, 1, 5, 7, 9, 16, 17, 19, 24, 27, 32]


class Space:
    """A manifest and a scope in it, chosen at random."""

    def __init__(self, rng, dtype):
        self.dtype, tensors = dtype, []
        for i in range(rng.randint(1, 5)):
            shape = [rng.choice([1, 2, 3, 4, 5, 7]) for _ in range(rng.randint(0, 4))]
            if shape and rng.random() < 0.1:
                shape[rng.randrange(len(shape))] = 0
            matrix = None
            if rng.random() < 0.5:
                n = math.prod(shape)
                rows = rng.choice([k for k in range(1, n + 1) if n % k == 0] or [0])
                matrix = [rows, n // rows if rows else 1 << 60]
            tensors.append((f"t{i}", dtype, shape, matrix))
        self.tensors = tensors
        self.manifest = made.manifest(*[(n, t, s, m) if m else (n, t, s) for n, t, s, m in tensors])
        self.sizes = [math.prod(shape) for _, _, shape, _ in tensors]
        self.first = rng.randrange(len(tensors))
        self.count = rng.randint(1, len(tensors) - self.first)
        self.start, self.length, self.scope = 0, None, b"\0" + v(self.first)
        size = self.sizes[self.first]
        if self.count == 1 and size > 1 and rng.random() < 0.5:
            if rng.random() < 0.8:              # whole rows of some view
                cell = rng.choice([k for k in range(1, size) if size % k == 0])
                self.length = cell * rng.randint(1, size // cell - 1)
                self.start = cell * rng.randint(0, (size - self.length) // cell)
            else:
                self.length = rng.randint(1, size - 1)
                self.start = rng.randint(0, size - self.length)
            self.scope = b"\2" + v(self.first) + v(self.start) + v(self.length)
        elif self.count > 1:
            self.scope = b"\1" + v(self.first) + v(self.count)
        self.mine = tensors[self.first:self.first + self.count]
        self.counts = [self.length] if self.length else self.sizes[self.first:self.first + self.count]
        self.n = sum(self.counts)

    def views(self, rng):
        """Returns one valid view for each tensor, and (row, column) of the elements of each."""
        codes, out = [], []
        for (_, _, shape, matrix), count in zip(self.mine, self.counts):
            whole = math.prod(shape)
            choices = [a | b << 3 for a in range(min(len(shape), 6) + 1) for b in range(a, min(len(shape), 7) + 1)]
            if matrix:
                choices.append(MATRIX)
            code = rng.choice(choices) | rng.choice([ROWS, COLUMNS, ROWS | COLUMNS])
            if self.length:
                a = code & 7
                row = matrix[1] if a == 7 else math.prod(shape[a:])
                if self.start % row or self.length % row:
                    code = 0
            if whole == 0 or rng.random() < 0.15:
                code = 0
            codes.append(code)
            out.append(places(code, shape, matrix, self.start, count))
        return codes, out


def random_group(rng, classes):
    return Group(classes, rng.choice([0, 1, 2, 3, 5, 63]), rng.random() < 0.5)


def random_groups(rng, classes):
    groups = []
    while classes:
        groups.append(random_group(rng, rng.randint(1, classes)))
        classes -= groups[-1].classes
    return groups


def random_positions(rng, n):
    return [i for i in range(n) if rng.random() < rng.choice([0.05, 0.3, 0.9])] if rng.random() < 0.95 else []


def random_lists(rng, space, classes):
    """Returns the fields of rule 2 and the class of each element."""
    codes, where = space.views(rng)
    budget = classes - 1
    levels, lists, class_of = [], [], []
    for code, pairs in zip(codes, where):
        level = rng.randint(0, budget)
        most_row = rng.randint(0, budget - level)
        rows = columns = None
        if code & ROWS:
            rows = [rng.randint(0, most_row) for _ in range(1 + max(r for r, _ in pairs))]
        if code & COLUMNS:
            columns = [rng.randint(0, budget - level - most_row) for _ in range(1 + max(c for _, c in pairs))]
        levels.append(level)
        lists.append((rows, columns))
        class_of += [level + (rows[r] if rows else 0) + (columns[c] if columns else 0) for r, c in pairs]
    flat = [part for both in lists for part in both if part is not None]
    tables, numbers = [], []
    if flat:
        tables = [frequencies(range(classes)) for _ in range(rng.choice([1, 2, 3, 16]))]
        numbers = [rng.randrange(len(tables)) for _ in flat]
        if rng.random() < 0.5:
            tables[numbers[0]] = frequencies(s for j, part in zip(numbers, flat) if j == numbers[0] for s in part)
    return Lists(codes, levels, lists, tables, numbers, rng.choice([0, 1, 2])), class_of


def attributes_of(space, before, after, cuts):
    """Returns the attribute delta with one run between consecutive `cuts`."""
    def digest(values, first, end):
        digests = [d.tensor_digest(d.Tensor(n, d.DTYPES[t][0], s, None, None), x)
                   for (n, t, s, _), x in list(zip(space.tensors, values))[first:end]]
        return digests[0] if end - first == 1 else blake3(b"".join(digests))[:16]
    runs = list(zip(cuts, cuts[1:]))
    body = v(len(runs)) + b"".join(v(first) + v(end - first - 1) + digest(before, first, end) + digest(after, first, end)
                                   for first, end in runs)
    return v(1) + v(2) + v(len(body)) + body


class BaseCase:
    """A random update whose only block is classed by the base, with the base and the result."""

    def __init__(self, rng, values_id=None):
        self.space = space = Space(rng, rng.choice(DTYPES))
        self.name, self.width = d.DTYPES[space.dtype]
        self.classes = rng.choice([1, 2, 3, 10, 64])
        self.bounds = sorted(rng.sample(range(1, 256), self.classes - 1), reverse=True)
        few = [rng.getrandbits(self.width) for _ in range(6)]
        self.before = [[rng.choice(few) for _ in range(size)] for size in space.sizes]
        base = [x for t in self.before[space.first:space.first + space.count] for x in t]
        base = base[space.start:space.start + space.n]
        self.class_of = [sum(bound > self.key(x) for bound in self.bounds) for x in base]
        self.groups = [random_group(rng, 1) for _ in range(self.classes)]
        positions = random_positions(rng, space.n)
        self.support = Support(1, bytes(self.bounds), self.classes, self.groups, self.class_of, positions)
        self.new = [rng.getrandbits(self.width) for _ in positions]
        self.values_id = values_id or rng.choice([1, 9, 10])
        self.by_group = self.values_id == 10 and rng.random() < 0.5 and sum(1 for c in self.support.counts if c) > 1
        self.after = [list(t) for t in self.before]
        where = [(space.first + t, i) for t, n in enumerate(space.counts) for i in range(n)]
        self.old = []
        for p, x in zip(self.support.order, self.new):
            t, i = where[p]
            self.old.append(self.after[t][i + space.start])
            self.after[t][i + space.start] = x
        # The tensors of the scope are in one run (CLS-8).
        end = space.first + space.count
        cuts = {0, space.first, end, len(space.tensors), *(rng.randrange(len(space.tensors)) for _ in range(2))}
        cuts = sorted(cut for cut in cuts if not space.first < cut < end)
        self.attributes = attributes_of(space, self.before, self.after, cuts)

    def key(self, element):
        """Returns the key, from the digits of the element in base 2."""
        digits = f"{element:0{self.width}b}"
        return int(digits[1:9] if self.name in d.FLOATS else digits[:8], 2)

    def values(self):
        if self.values_id == 1:
            return b"\0" + plane([(x, self.width) for x in self.new])
        if self.values_id == 9:
            return self.planes()
        out = []
        for old, new in zip(self.old, self.new):
            is_float = self.name in d.FLOATS
            step = d.ulp_order(new, self.width, is_float) - d.ulp_order(old, self.width, is_float)
            step = (step + (1 << self.width - 1)) % (1 << self.width) - (1 << self.width - 1)
            out.append(2 * step if step >= 0 else -2 * step - 1)
        return b"\1" + entropy_by_group(out, True, self.support.counts) if self.by_group else ints(out, 1)

    def planes(self):
        if self.width == 4:
            row = plane([(x, 4) for x in self.new])
            return b"\1" + ints(list(row), 2)
        new = self.new
        if self.name in ("f64", "f32", "f16", "bf16"):
            new = [x << 1 & (1 << self.width) - 1 | x >> self.width - 1 for x in new]
        return b"".join(b"\1" + ints([x >> 8 * i & 255 for x in new], 2) for i in range(self.width // 8))

    def stream(self, support=None, values=None, **more):
        block = made.block(self.space.scope, 9, self.support.bytes() if support is None else support,
                           self.values_id, self.values() if values is None else values)
        update = made.update(self.space.manifest, [block], **{"attributes": self.attributes, **more})
        return made.stream(made.frame(1, self.space.manifest), made.frame(2, update, 1))

    def base(self):
        return {name: {"dtype": self.name, "shape": shape,
                       "data": d.pack(d.Tensor(name, self.name, shape, None, None), x).hex()}
                for (name, _, shape, _), x in zip(self.space.tensors, self.before)}
