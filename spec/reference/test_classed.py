"""Tests of classed supports, views, signs and digests of runs.

    python3 -m unittest test_classed
"""

import os
import random
import struct
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import decoder as d  # noqa: E402
import test_decoder as made  # noqa: E402
from blake3 import blake3  # noqa: E402
from classed_writer import (COLUMNS, MATRIX, ROWS, BaseCase, Group, Space, Support, attributes_of,  # noqa: E402
                            entropy, entropy_by_group, ints, lane, random_groups, random_lists, random_positions)
from test_decoder import plane, table, v  # noqa: E402


class Base(made.Case):
    def test_random(self):
        rng, seen = random.Random(11), set()
        for _ in range(200):
            case = BaseCase(rng)
            data = case.stream()
            [block] = d.decode(data)["frames"][1]["blocks"]
            self.assertIsNone(block["positions"])
            self.assertEqual(block["support"], "classed")
            self.assertEqual(block["groups"], [[g.classes, n] for g, n in zip(case.groups, case.support.counts)])
            got = d.tensors(data, base=case.base())
            for (name, _, shape, _), want in zip(case.space.tensors, case.after):
                tensor = d.Tensor(name, case.name, shape, None, None)
                self.assertEqual(got[name]["data"], d.pack(tensor, want).hex())
            seen.add((case.name, case.values_id, case.by_group))
        self.assertGreater(len(seen), 40)

    def test_corrupt_bytes(self):
        """Checks that no byte of a support or of values causes anything but a refusal or another result."""
        rng = random.Random(12)
        refused = changed = 0
        for _ in range(80):
            case = BaseCase(rng)
            support, values = case.support.bytes(), case.values()
            for part in (support, values):
                for at in sorted(rng.sample(range(len(part)), min(len(part), 6))):
                    bad = part[:at] + bytes([rng.randrange(256)]) + part[at + 1:]
                    data = case.stream(bad, None) if part is support else case.stream(None, bad)
                    try:
                        d.tensors(data, base=case.base())
                        changed += bad != part
                    except d.FormatError:
                        refused += 1
        self.assertGreater(refused, 500)
        # Other positions or values have another result digest. A few bytes can change without effect, such as
        # the shift of a group whose gaps are all 0.
        self.assertLess(changed, refused // 20)

    def case(self, **more):
        """Returns eight elements of the classes 1 0 2 1 2 0 1 1."""
        case = BaseCase.__new__(BaseCase)
        case.space = space = Space.__new__(Space)
        space.dtype, space.tensors = 4, [("w", 4, [8], None), ("x", 4, [2], None)]
        space.manifest = made.manifest(("w", 4, [8]), ("x", 4, [2]))
        space.scope = b"\0\0"
        case.name, case.width, case.values_id, case.by_group = "bf16", 16, 1, False
        case.before = [[0x3F80, 0x4000, 0x3F00, 0xBF80, 0x8000, 0x4080, 0x3FFF, 0x3F80], [1, 2]]
        case.bounds, case.class_of = [0x80, 0x7F], [1, 0, 2, 1, 2, 0, 1, 1]
        case.groups = [Group(1, 0, False), Group(1, 1, False), Group(1, 0, False)]
        case.support = self.support(case, [1, 4, 7])
        case.new = [0x4001, 0x3F81, 0x3E00]
        case.after = [list(case.before[0]), [1, 2]]
        for p, x in zip(case.support.order, case.new):
            case.after[0][p] = x
        case.attributes = attributes_of(space, case.before, case.after, [0, 2])
        case.__dict__.update(more)
        return case

    def support(self, case, positions):
        return Support(1, bytes(case.bounds), 3, case.groups, case.class_of, positions)

    def test_by_hand(self):
        case = self.case()
        # Class 0: elements 1 5, rank 0. Class 1: 0 3 6 7, rank 3, shift 1. Class 2: 2 4, rank 1.
        self.assertEqual(case.support.order, [1, 7, 4])
        want = bytes.fromhex("01 03 807f 03 010100 010101 010100 01 02 02 01")
        self.assertEqual(case.support.bytes(), want)
        self.assertEqual(d.tensors(case.stream(), base=case.base())["w"]["data"],
                         struct.pack("<8H", 0x3F80, 0x4001, 0x3F00, 0xBF80, 0x3E00, 0x4080, 0x3FFF, 0x3F81).hex())

    def refuses_support(self, kind, data, stage="decode"):
        case = self.case()
        made_of = case.stream(bytes.fromhex(data))
        if stage == "tensors":
            self.assertIsNotNone(d.decode(made_of))
            self.refuses(kind, lambda: d.tensors(made_of, base=case.base()))
        else:
            self.refuses(kind, d.decode, made_of)

    def test_fields(self):
        for kind, data in [
                ("unsupported", "00 03 807f 03 010100 010101 010100 01 02 02 01"),      # rule
                ("unsupported", "03 03 807f 03 010100 010101 010100 01 02 02 01"),
                ("out_of_range", "01 00 03 010100 010101 010100 01 02 02 01"),           # C
                ("out_of_range", "01 41 807f 03 010100 010101 010100 01 02 02 01"),
                ("not_ascending", "01 03 8080 03 010100 010101 010100 01 02 02 01"),     # CLS-6
                ("not_ascending", "01 03 7f80 03 010100 010101 010100 01 02 02 01"),
                ("not_ascending", "01 03 8000 03 010100 010101 010100 01 02 02 01"),
                ("out_of_range", "01 03 807f 00"),                                       # group_count
                ("out_of_range", "01 03 807f 04 010100 010101 010100 0100 01 02 02 01"),
                ("out_of_range", "01 03 807f 03 000100 010101 010100 01 02 02 01"),      # classes
                ("out_of_range", "01 03 807f 03 040100 010101 010100 01 02 02 01"),
                ("out_of_range", "01 03 807f 02 010100 020201 01 0a 01"),                # CLS-9
                ("count_mismatch", "01 03 807f 02 010100 010201 01 0a 01"),              # CLS-2
                ("out_of_range", "01 03 807f 03 020100 010101 010100 01 02 02 01"),
                ("count_mismatch", "01 03 807f 03 010100 010701 010100 01 ff00 01 01"),  # CLS-3
                ("count_mismatch", "01 03 807f 03 01ffffffffffffffffff0100 010101 010100 01 02 02 01"),
                ("reserved_bits", "01 03 807f 03 010180 010101 010100 01 02 02 01"),
                ("nonzero_padding", "01 03 807f 03 010100 010101 010100 01 02 06 01"),   # quotients
                ("length_mismatch", "01 03 807f 03 010100 010101 010100 01 02"),
                ("bad_varint", "01 03 807f 03 01810000 010101 010100 01 02 02 01"),
                ("position_out_of_range", "01 03 807f 03 010100 010101 010100 0001 02 02 01"),   # CLS-4: 8 of n
                ("position_out_of_range", "01 03 807f 03 010100 01013f 010100 01 02 02 ffffffffffffff7f"),
                ("length_mismatch", "01 03 807f 03 010100 010101 010100 01 02 02"),      # CLS-5
                ("length_mismatch", "01 03 807f 03 010100 010101 010100 01 02 02 0100"),
                ("nonzero_padding", "01 03 807f 03 010100 010101 010100 01 02 02 03")]:
            self.refuses_support(kind, data)

    def test_ranks(self):
        """Checks ranks that are below n, but not below the number of elements in the class."""
        for data in ("01 03 807f 03 010100 010101 010100 04 02 02 01",      # rank 2 of 2
                     "01 03 807f 03 010100 010101 010100 01 04 02 00",      # rank 4 of 4
                     "01 03 807f 03 010300 0100 0100 07"):                  # nothing after rank 1 of 2
            self.refuses_support("position_out_of_range", data, "tensors")

    def test_uses(self):
        case = self.case()
        support = case.support.bytes()
        self.refuses("unknown_reference", d.decode, case.stream(attributes=b"\0"))          # CLS-7
        added = self.case()
        added.space.scope = b"\4\0"
        self.refuses("out_of_range", d.decode, added.stream())
        for values_id, values in [(1, b"\2" + bytes(12)), (2, made.CONSTANT), (3, made.CONSTANT + b"\0\0"),
                                  (4, b"\0\0\0\0\0" + b"\0"), (8, b"\5" + made.CONSTANT + b"\0\0")]:
            self.refuses("out_of_range", d.decode, self.case(values_id=values_id).stream(values=values))
        body = blake3(case.space.manifest) + b"\0\0\0" + b"\0\0" + v(9) + support
        self.refuses("out_of_range", d.decode, made.stream(made.frame(1, case.space.manifest), made.frame(3, body)))
        rows = made.block(b"\0\0", 6, b"\1\x09" + support, 1, case.values())
        update = made.update(case.space.manifest, [rows], attributes=case.attributes)
        self.refuses("out_of_range", d.decode,
                     made.stream(made.frame(1, case.space.manifest), made.frame(2, update, 1)))
        wrong = case.base()
        wrong["x"]["data"] = "00000000"
        self.refuses("checksum_mismatch", lambda: d.tensors(case.stream(), base=wrong))

    def test_class_after_earlier_blocks(self):
        """Checks that an earlier block with `add` changes the class of an element."""
        case = self.case()
        plus = [d.element_plus_number("bf16", x, 0x40000000) for x in case.before[0]]
        case.class_of = [sum(bound > case.key(x) for bound in case.bounds) for x in plus]
        support = self.support(case, [1, 3, 7])
        after = [list(plus), [1, 2]]
        for p, x in zip(support.order, case.new):
            after[0][p] = x
        added = made.block(b"\4\0", 1, b"", 2, b"\0\2" + struct.pack("<f", 2.0))
        block = made.block(b"\0\0", 9, support.bytes(), 1, case.values())
        attributes = attributes_of(case.space, case.before, after, [0, 2])
        update = made.update(case.space.manifest, [added, block], attributes=attributes)
        data = made.stream(made.frame(1, case.space.manifest), made.frame(2, update, 1))
        self.assertEqual(d.tensors(data, base=case.base())["w"]["data"], struct.pack("<8H", *after[0]).hex())

    def test_segments_of_groups(self):
        steps = [2, 4, 6]
        case = self.case(values_id=10)
        for coding in (1, 2):
            data = case.stream(values=bytes([coding]) + entropy_by_group(steps, coding == 1, case.support.counts))
            self.assertEqual(d.decode(data)["frames"][1]["blocks"][0]["numbers"], {"diffs": [1, 2, 3]})
        one = bytes([1]) + entropy_by_group(steps, True, [3])
        self.refuses("bad_code", d.decode, case.stream(values=one))
        group = self.case(values_id=10)                                                     # INT-3
        group.support = self.support(group, [0, 3, 7])
        self.refuses("out_of_range", d.decode, group.stream(values=one))
        ascending = made.block(b"\0\0", 4, b"\x92", 10, one)
        update = made.update(case.space.manifest, [ascending], attributes=case.attributes)
        self.refuses("out_of_range", d.decode,
                     made.stream(made.frame(1, case.space.manifest), made.frame(2, update, 1)))
        by_group = entropy_by_group(steps, False, [1, 1, 1])
        self.refuses("out_of_range", d.decode,
                     case.stream(values=b"\3\3\0" + entropy([0], False) + by_group))
        self.refuses("out_of_range", d.decode, self.case(values_id=9).stream(values=2 * (b"\1\2" + by_group)))
        quotients = d.entropy, made.reader(entropy_by_group([1, 2], True, [1, 1])), 2, True, [], made.budget()
        self.refuses("out_of_range", *quotients)


class RowsAndColumns(made.Case):
    def case(self, rng):
        space = Space(rng, 2)
        classes = rng.choice([1, 2, 3, 9, 64])
        lists, class_of = random_lists(rng, space, classes)
        positions = random_positions(rng, space.n)
        support = Support(2, lists.bytes(), classes, random_groups(rng, classes), class_of, positions)
        return space, positions, support

    def stream(self, space, support, values_id, values):
        block = made.block(space.scope, 9, support, values_id, values)
        return made.stream(made.frame(1, space.manifest), made.frame(2, made.update(space.manifest, [block]), 1))

    def test_random(self):
        rng, sizes = random.Random(21), []
        for _ in range(200):
            space, positions, support = self.case(rng)
            values = b"\2" + struct.pack(f"<{len(positions)}f", *positions)
            data = self.stream(space, support.bytes(), 1, values)
            [block] = d.decode(data)["frames"][1]["blocks"]
            self.assertEqual((block["positions"], "groups" in block), (positions, False))
            sizes.append(len(positions))
            got = d.tensors(data)[space.mine[0][0]]["data"]
            row = [0.0] * space.sizes[space.first]
            for p in positions:
                if p < space.counts[0]:
                    row[space.start + p] = float(p)
            self.assertEqual(got, struct.pack(f"<{len(row)}f", *row).hex())
            body = blake3(space.manifest) + b"\0\0\0" + space.scope + v(9) + support.bytes()
            found = d.decode(made.stream(made.frame(1, space.manifest), made.frame(3, body)))["frames"][1]
            self.assertEqual(found["positions"], positions)
        self.assertGreater(max(sizes), 100)

    def test_corrupt_bytes(self):
        rng, refused, accepted = random.Random(22), 0, 0
        for _ in range(80):
            space, positions, support = self.case(rng)
            good = support.bytes()
            for at in sorted(rng.sample(range(len(good)), min(len(good), 12))):
                bad = good[:at] + bytes([rng.randrange(256)]) + good[at + 1:]
                try:
                    d.decode(self.stream(space, bad, 2, made.CONSTANT))
                    accepted += 1
                except d.FormatError:
                    refused += 1
        self.assertGreater(min(refused, accepted), 40)

    SHAPES = (("a", 2, [2, 3]), ("b", 2, [0, 4]), ("c", 2, [4, 2], [2, 4]))

    def refuses_fields(self, kind, views, levels, tables, numbers, lists, classes=4, scope=b"\1\0\3", rest=None):
        man = made.manifest(*self.SHAPES)
        fields = ints(views) + ints(levels) + bytes([len(tables)]) + b"".join(tables) + ints(numbers) + lists
        support = bytes([2, classes]) + fields + (bytes([1, classes, 0]) if rest is None else rest)
        block = made.block(scope, 9, support, 2, made.CONSTANT)
        data = made.stream(made.frame(1, man), made.frame(2, made.update(man, [block]), 1))
        if kind is None:
            return d.decode(data)
        return self.refuses(kind, d.decode, data)

    def test_fields(self):
        freq = {0: 2048, 1: 1024, 3: 1024}
        one, most = table(freq, 0), table({0: 4096 - 64, 2: 64}, 0)
        both, matrix = 1 | 2 << 3 | ROWS | COLUMNS, MATRIX | ROWS
        def symbols(*xs):
            return lane(xs, [freq] * len(xs))
        good = symbols(0, 1, 1, 0, 0, 3, 1)
        views, levels = [both, 0, matrix], [0, 0, 0]
        self.assertIsNotNone(self.refuses_fields(None, views, levels, [one], [0, 0, 0], good))
        self.assertIsNotNone(self.refuses_fields(None, [0, 0, 0], [3, 0, 1], [], [], b""))
        for kind, changed in [
                ("not_canonical", ([both & 63, 0, matrix], levels)),                    # VIW-1
                ("not_canonical", ([both, both, matrix], levels)),
                ("out_of_range", ([2 | 1 << 3 | ROWS, 0, matrix], levels)),             # VIW-2
                ("out_of_range", ([1 | 3 << 3 | ROWS, 0, matrix], levels)),
                ("out_of_range", ([MATRIX | ROWS, 0, matrix], levels)),
                ("out_of_range", ([both, 0, 7 | 6 << 3 | ROWS], levels)),
                ("out_of_range", ([both, 0, 256], levels)),                             # INT-4
                ("out_of_range", (views, [0, 64, 0])), ("out_of_range", (views, [0, 4, 0])),
                ("out_of_range", (views, [1, 0, 1]))]:                                  # CLS-11: 1 + 0 + 3
            self.refuses_fields(kind, *changed, [one], [0, 0, 0], good)
        self.refuses_fields("out_of_range", views, levels, [one] * 17, [0, 0, 0], good)     # CLS-10
        self.refuses_fields("count_mismatch", views, levels, [], [], good)
        self.refuses_fields("count_mismatch", [0, 0, 0], levels, [one], [], b"")
        self.refuses_fields("out_of_range", views, levels, [one, most], [0, 2, 0], good)    # INT-4
        self.refuses_fields("bad_table", views, levels, [b"\0\1\2"], [0, 0, 0], good)
        self.refuses_fields("bad_code", views, levels, [one], [0, 0, 0], good[:1] + b"\0" * 4 + good[5:])
        self.refuses_fields("bad_code", views, levels, [one], [0, 0, 0], symbols(0, 1, 1, 0, 0, 3))
        self.refuses_fields("position_out_of_range", views, levels, [one], [0, 0, 0], good,
                            rest=bytes([2, 2, 11, 0, 2, 1, 0, 0xFF, 0x07, 1]))
        self.refuses_fields("position_out_of_range", views, levels, [one], [0, 0, 0], good,
                            rest=bytes([1, 4, 1, 0x3F]) + b"\2" + bytes(8))
        for scope, view in [(b"\2\0\1\3", both), (b"\2\0\0\2", both), (b"\2\0\0\3", ROWS), (b"\2\2\2\4", matrix)]:
            self.refuses_fields("out_of_range", [view], [0], [one], [0] * 2, symbols(0, 0), scope=scope)     # VIW-3
        self.assertIsNotNone(
            self.refuses_fields(None, [both], [0], [one], [0, 0], symbols(3, 0, 0, 0), scope=b"\2\0\3\3"))
        self.assertIsNotNone(self.refuses_fields(None, [matrix], [0], [one], [0], symbols(3), scope=b"\2\2\4\4"))

    def test_limits(self):
        """Checks that a few bytes cannot demand memory or time beyond the limits."""
        def decode(shape, view, table_of, rest, limits, matrix=None):
            man = made.manifest(("w", 2, shape, matrix) if matrix else ("w", 2, shape))
            fields = ints([view]) + ints([0]) + b"\1" + table_of + ints([0] * (2 if view >> 6 == 3 else 1))
            block = made.block(b"\0\0", 9, bytes([2, 4]) + fields + v(0) + struct.pack("<I", 1 << 16) + rest, 2,
                               made.CONSTANT)
            return d.decode(made.stream(made.frame(1, man), made.frame(2, made.update(man, [block]), 1)), limits)
        zeros = table({0: 4096}, 0)
        wide = {"max_elements": 1 << 62}
        both = 1 | 2 << 3 | ROWS | COLUMNS
        none = bytes([1, 4, 0])
        self.refuses("limit", decode, [1 << 20, 1 << 20], both, zeros, none, None)              # elements
        self.refuses("limit", decode, [1 << 28, 1 << 28], both, zeros, none, wide)              # rows
        self.refuses("limit", decode, [4, 1 << 40], both, zeros, none, wide)                    # columns
        self.refuses("limit", decode, [1 << 50], MATRIX | ROWS, zeros, none, wide, [1 << 46, 16])
        # Few rows of many elements: nothing is expanded.
        one = bytes([1, 4, 1, 63]) + b"\1" + (5 << 40).to_bytes(8, "little")
        got = decode([8, 1 << 50], 1 | 1 << 3 | ROWS, zeros, one, wide)
        self.assertEqual(got["frames"][1]["blocks"][0]["positions"], [5 << 40])
        many = bytes([1, 4]) + v(1 << 45) + bytes([0x40, 0]) + made.segment([], {0: 4096}, 0)
        self.refuses("limit", decode, [8, 1 << 50], 1 | 1 << 3 | ROWS, zeros, many, wide)       # m by tokens
        unary = bytes([1, 4]) + v(1 << 45) + bytes([0, 0xFF])
        self.refuses("length_mismatch", decode, [8, 1 << 50], 1 | 1 << 3 | ROWS, zeros, unary, wide)


class Signs(made.Case):
    def predicted(self, rng, space, positions, signs):
        """Returns the signs of `positions` with coding 1 and random views."""
        codes, where = space.views(rng)
        pairs = [(t, r, c) for t, of in enumerate(where) for r, c in of]
        bits, fields = {}, []
        for t, code in enumerate(codes):
            used = [pairs[p] for p in positions if pairs[p][0] == t]
            rows = sorted({r for _, r, _ in used}) if code & ROWS else []
            columns = sorted({c for _, _, c in used}) if code & COLUMNS else []
            for key in [(t, "row", r) for r in rows] + [(t, "column", c) for c in columns]:
                bits[key] = rng.getrandbits(1)
                fields.append((bits[key], 1))
        left = []
        for p, sign in zip(positions, signs):
            t, r, c = pairs[p]
            left.append(sign ^ bits.get((t, "row", r), 0) ^ bits.get((t, "column", c), 0))
        width = rng.randint(1, 8)
        symbols = [sum(bit << k for k, bit in enumerate(left[i:i + width])) for i in range(0, len(left), width)]
        return b"\1" + ints(codes, 1) + plane(fields) + bytes([width]) + entropy(symbols, False)

    def test_random(self):
        rng, counted = random.Random(31), 0
        for _ in range(200):
            space = Space(rng, 2)
            positions = random_positions(rng, space.n)
            bitmap = plane([(int(i in set(positions)), 1) for i in range(space.n)])
            codes = [rng.choice([0, 1, 2, 5]) for _ in positions]
            if rng.random() < 0.5:
                values_id, head, signed = 3, made.CONSTANT, positions
            else:
                values_id, head = 4, struct.pack("<hB", -1, 0) + ints(codes, 2)
                signed = [p for p, c in zip(positions, codes) if c]
            signs = [rng.getrandbits(1) for _ in signed]
            numbers = []
            if not signed:
                continue
            for values in (b"\0" + plane([(s, 1) for s in signs]), self.predicted(rng, space, signed, signs)):
                block = made.block(space.scope, 4, bitmap, values_id, head + values)
                data = made.stream(made.frame(1, space.manifest),
                                   made.frame(2, made.update(space.manifest, [block]), 1))
                numbers.append(d.decode(data)["frames"][1]["blocks"][0]["numbers"])
            self.assertEqual(numbers[0], numbers[1])
            counted += 1
        self.assertGreater(counted, 100)

    def refuses_signs(self, kind, signs, support_id=1, support=b"", n=6):
        man = made.manifest(("w", 2, [2, n // 2]))
        frames = [made.frame(1, man)]
        if support_id == 8:
            body = blake3(man) + b"\0\0\0" + b"\0\0" + v(4) + b"\x3f"
            frames.append(made.frame(3, body))
            support = blake3(body)
        block = made.block(b"\0\0", support_id, support, 3, made.CONSTANT + signs)
        data = made.stream(*frames, made.frame(2, made.update(man, [block]), 1))
        if kind is None:
            [block] = d.decode(data)["frames"][-2]["blocks"]
            return [x == "3fc00000" for x in block["numbers"]]                 # minus a scale of -1.5
        return self.refuses(kind, d.decode, data)

    def test_by_hand(self):
        both = ints([1 | 2 << 3 | ROWS | COLUMNS])
        last = entropy([1, 2], False)
        # Rows 0 1, columns 1 0 0; residuals 1 0 0 0 and 0 1.
        got = self.refuses_signs(None, b"\1" + both + b"\x06" + b"\4" + last)
        self.assertEqual(got, [False, False, False, False, True, False])
        self.refuses_signs("nonzero_padding", b"\1" + both + b"\x26" + b"\4" + last)         # SIG-3
        self.refuses_signs("nonzero_padding", b"\1" + both + b"\x06" + b"\4" + entropy([1, 6], False))   # SIG-2
        self.refuses_signs("out_of_range", b"\1" + both + b"\x06" + b"\4" + entropy([16, 2], False))
        self.refuses_signs("out_of_range", b"\1" + both + b"\x06" + b"\4" + entropy([1, 18], False))
        for width in (b"\0", b"\x09"):
            self.refuses_signs("out_of_range", b"\1" + both + b"\x06" + width + last)
        self.refuses_signs("unsupported", b"\2" + both + b"\x06" + b"\4" + last)            # SIG-1
        self.refuses_signs("out_of_range", b"\1", 4, b"\0")
        self.refuses_signs("length_mismatch", b"\1" + both + b"\x06" + b"\4" + last + b"\0")     # SGN-1
        self.refuses_signs("length_mismatch", b"\0")
        self.refuses_signs("length_mismatch", b"\0\0\0")
        self.refuses_signs("nonzero_padding", b"\0\x40")
        self.refuses_signs("not_canonical", b"\1" + ints([1 | 2 << 3]) + b"\4" + last)       # VIW-1
        self.refuses_signs("out_of_range", b"\1" + both + b"\x06" + b"\4\1" + last[1:])      # INT-3
        for support_id, support in [(7, b"\6" + bytes(8)), (8, None)]:                       # SIG-1
            self.assertEqual(self.refuses_signs(None, b"\0\x05", support_id, support), [True, False, True] + 3 * [False])
            self.refuses_signs("out_of_range", b"\1" + both + b"\x06" + b"\4" + last, support_id, support)

    def test_nested(self):
        def numbers(coding):
            code = struct.pack("<hB", 0, 0) + b"\0\1\3" + coding
            p = b"\4" + v(len(code)) + code
            man = made.manifest(("w", 2, [2, 1]))
            block = made.block(b"\0\0", 1, b"", 12, b"\2\1\1" + p + b"\1\2" + struct.pack("<f", 1.0))
            return d.decode(made.stream(made.frame(1, man), made.frame(2, made.update(man, [block]), 1)))
        self.assertEqual(numbers(b"\0\2")["frames"][1]["blocks"][0]["numbers"], ["3f800000", "bf800000"])
        self.refuses("out_of_range", numbers, b"\1\0\0\1" + entropy([0, 1], False))


class Runs(made.Case):
    def setUp(self):
        self.space = Space.__new__(Space)
        self.space.tensors = [(f"t{i}", 24, [i], None) for i in range(5)]
        self.space.manifest = made.manifest(*[t[:3] for t in self.space.tensors])
        self.before = [[i] * i for i in range(5)]
        self.after = [[i + 1] * i for i in range(5)]

    def stream(self, *parts):
        """Returns a stream with one part for each (cuts, tensors)."""
        frames = [made.frame(1, self.space.manifest)]
        for number, (attributes, touched) in enumerate(parts):
            blocks = [made.block(b"\0" + v(t), 1, b"", 1, b"\0" + bytes(self.after[t])) for t in touched]
            update = made.update(self.space.manifest, blocks, number, attributes=attributes)
            frames.append(made.frame(2, update, int(number + 1 == len(parts))))
        return made.stream(*frames)

    def delta(self, *cuts):
        return attributes_of(self.space, self.before, self.after, cuts)

    def base(self):
        return {name: {"dtype": "u8", "shape": shape, "data": bytes(x).hex()}
                for (name, _, shape, _), x in zip(self.space.tensors, self.before)}

    def test_runs(self):
        want = {f"t{i}": bytes(x).hex() for i, x in enumerate(self.after)}
        for parts in [[(self.delta(0, 5), range(5))], [(self.delta(0, 1, 3, 5), range(5))],
                      [(self.delta(0, 2), [0, 1]), (self.delta(2, 5), [2, 3, 4])],
                      [(self.delta(0, 5), [0, 1]), (self.delta(0, 5), [2, 3, 4])]]:
            data = self.stream(*parts)
            self.assertEqual({name: t["data"] for name, t in d.tensors(data, base=self.base()).items()}, want)
        run = d.decode(self.stream((self.delta(1, 4), [1, 3])))["frames"][1]["delta"]
        digests = [d.tensor_digest(d.Tensor("", "u8", [i], None, None), self.before[i]) for i in (1, 2, 3)]
        self.assertEqual([(r["first"], r["more"], r["base"]) for r in run], [(1, 2, blake3(b"".join(digests))[:16].hex())])

    def test_refusals(self):
        def entries(*pairs):
            body = v(len(pairs)) + b"".join(v(first) + v(more) + bytes(32) for first, more in pairs)
            return v(1) + v(2) + v(len(body)) + body
        for kind, pairs in [("not_ascending", [(1, 1), (2, 0)]), ("not_ascending", [(1, 0), (1, 0)]),
                            ("not_ascending", [(2, 0), (0, 0)]), ("out_of_range", [(5, 0)]), ("out_of_range", [(1, 4)]),
                            ("out_of_range", [(1, 2**64 - 1)]), ("out_of_range", [(2**64 - 1, 2**64 - 1)])]:
            self.refuses(kind, d.decode, self.stream((entries(*pairs), [])))                  # DEL-1
        self.assertIsNotNone(d.decode(self.stream((entries((0, 1), (2, 2)), range(5)))))
        for pairs, touched in [([(1, 3)], [0]), ([(0, 3)], [4]), ([(0, 1), (3, 1)], [2])]:
            self.refuses("unknown_reference", d.decode, self.stream((entries(*pairs), touched)))   # DEL-2
        several = made.block(b"\1\1\3", 1, b"", 1, b"\0" + bytes(6))
        for pairs, kind in [([(0, 1), (2, 1)], None), ([(1, 2)], None), ([(1, 0), (3, 0)], "unknown_reference")]:
            update = made.update(self.space.manifest, [several], attributes=entries(*pairs))
            data = made.stream(made.frame(1, self.space.manifest), made.frame(2, update, 1))
            if kind is None:
                self.assertIsNotNone(d.decode(data))
            else:
                self.refuses(kind, d.decode, data)
        ulp = made.block(b"\0\1", 1, b"", 10, b"\0\0")                                        # DEL-3
        update = made.update(self.space.manifest, [ulp])
        self.refuses("unknown_reference", d.decode,
                     made.stream(made.frame(1, self.space.manifest), made.frame(2, update, 1)))
        data = self.stream((self.delta(0, 5), range(5)))                                      # DEL-4
        for name in ("t1", "t4"):
            wrong = self.base()
            wrong[name]["data"] = "ff" + wrong[name]["data"][2:]
            self.refuses("checksum_mismatch", lambda: d.tensors(data, base=wrong))
        missing = self.base()
        del missing["t3"]
        self.refuses("unknown_reference", lambda: d.tensors(data, base=missing))
        self.refuses("checksum_mismatch",
                     lambda: d.tensors(self.stream((self.delta(0, 5), [1, 2, 3])), base=self.base()))

    def test_limits(self):
        limits = {"max_blocks": 9}
        part = (self.delta(0, 5), range(5))
        self.refuses("limit", d.decode, self.stream(part), limits)
        self.assertIsNotNone(d.decode(self.stream(part), {"max_blocks": 10}))
        scope = made.block(b"\5\0\5", 5, b"\1\1", 2, made.CONSTANT)
        man = made.manifest(*[(f"t{i}", 2, [0]) for i in range(5)])
        data = made.stream(made.frame(1, man), made.frame(2, made.update(man, [scope] * 2), 1))
        self.refuses("limit", d.decode, data, limits)
        self.assertIsNotNone(d.decode(data, {"max_blocks": 10}))


if __name__ == "__main__":
    unittest.main()
