#!/usr/bin/env python3
"""Tests of lgc_conv1d.py with a handwritten model of whole numbers.

The expected values and the model's id are those of latent/tests/inference.rs.
"""

import struct
import unittest

from blake3 import blake3
from lgc_conv1d import Bad, Model


def conv(kind, inputs, outputs, kernel, stride, before, weights, bias=()):
    head = struct.pack("<BHHBBBB", kind, inputs, outputs, kernel, stride, before, 1 if bias else 0)
    return head + struct.pack(f"<{len(weights) + len(bias)}f", *weights, *bias)


ENCODER = (b"\3" + conv(1, 1, 2, 3, 2, 1, [1, 2, 3, -1, 0, 1]) + b"\3" + struct.pack("<f", 0.5)
           + conv(1, 2, 1, 1, 1, 0, [1, -2], [1]))


def decoder(sign):
    return b"\4" + conv(2, 1, 1, 3, 2, 1, [1, 2, 3]) + b"\4\5" + conv(1, 2, 1, 1, 1, 0, [sign, 10])


def model(innovation=1, decoders=(1, -1)):
    head = b"lgc-c1d\1" + struct.pack("<BBH", innovation, 0, len(decoders))
    return head + ENCODER + b"".join(map(decoder, decoders))


class Test(unittest.TestCase):
    def test_by_hand(self):
        m = Model(model())
        self.assertEqual(m.encode([1, 2, 3]), [5, 11])
        self.assertEqual(m.decode(0, [5, 11], 3), [10, 26, 22])
        self.assertEqual(m.decode(1, [5, 11], 3, [(1, 0.5)]), [-10, -21, -22])
        self.assertEqual(Model(model(2)).decode(1, [5, 11], 3, [(1, 0.5)]), [-10, 0.5, -22])
        self.assertEqual(blake3(model()).hex(), "3696d701a1522431f17c4dc1cc222e437851c1dff70fba664552e4b158540c24")

    def test_lengths(self):
        m = Model(model())
        for values in (0, 1, 2, 3, 16, 17):
            codes = m.encode([0.5] * values)
            self.assertEqual(len(codes), -(-values // 2))
            self.assertEqual(len(m.decode(0, codes, values)), values)

    def test_refused(self):
        good = model()
        for end in range(len(good)):
            with self.assertRaises(Bad):
                Model(good[:end])
        for bad in (good + b"\0", model(0), model(3), b"x" + good[1:]):
            with self.assertRaises(Bad):
                Model(bad)
        with self.assertRaises(Bad):
            Model(good).decode(2, [5, 11], 3)


if __name__ == "__main__":
    unittest.main()
