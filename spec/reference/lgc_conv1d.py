#!/usr/bin/env python3
"""Models of format lgc-conv1d/1: a second implementation, written from models/lgc-conv1d.md alone.

Python's floats are binary64, and struct rounds them to binary32: no other arithmetic is needed. Slow.
"""

import math
import struct


class Bad(Exception):
    """The bytes are not a model, or the arguments do not fit the model."""


def need(condition, what):
    if not condition:
        raise Bad(what)


def f32(x):
    """Rounds to binary32. A result that is not finite is an error of the model."""
    try:
        y = struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        raise Bad("a result that is not finite") from None
    need(math.isfinite(y), "a result that is not finite")
    return y


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        need(self.at + n <= len(self.data), "the model is truncated")
        self.at += n
        return self.data[self.at - n:self.at]

    def numbers(self, fmt, count=1):
        return struct.unpack(f"<{count}{fmt}", self.take(count * struct.calcsize("<" + fmt)))

    def one(self, fmt, low, high):
        (x,) = self.numbers(fmt)
        need(low <= x <= high, "a field is out of range")
        return x


def read_network(r):
    return [read_layer(r) for _ in range(r.one("B", 1, 64))]


def read_layer(r):
    kind = r.one("B", 1, 5)
    if kind == 3:
        return kind, r.one("f", 0, 1)
    if kind > 3:
        return kind, None
    inputs, outputs = r.one("H", 1, 4096), r.one("H", 1, 4096)
    kernel, stride, before = r.one("B", 1, 15), r.one("B", 1, 8), r.one("B", 0, 14)
    need(before < kernel, "before")
    flags = r.one("B", 0, 3)
    fmt = "e" if flags & 2 else "f"
    weights = r.numbers(fmt, inputs * outputs * kernel)
    bias = r.numbers(fmt, outputs) if flags & 1 else None
    need(all(map(math.isfinite, weights + (bias or ()))), "a weight that is not finite")
    return kind, (inputs, outputs, kernel, stride, before, weights, bias)


def convolve(kind, layer, x):
    inputs, outputs, kernel, stride, before, weights, bias = layer
    columns = len(x[0]) // stride if kind == 1 else len(x[0]) * stride
    y = []
    for o in range(outputs):
        row = []
        for t in range(columns):
            total = bias[o] if bias else 0.0
            for i in range(inputs):
                for k in range(kernel):
                    if kind == 1:
                        w, column, rest = weights[(o * inputs + i) * kernel + k], t * stride + k - before, 0
                    else:
                        w = weights[(i * outputs + o) * kernel + k]
                        column, rest = divmod(t + before - k, stride)
                    if rest == 0 and 0 <= column < len(x[i]):
                        total += w * x[i][column]
            row.append(f32(total))
        y.append(row)
    return y


class Model:
    def __init__(self, data):
        r = Reader(data)
        need(r.take(8) == b"lgc-c1d\x01", "magic")
        self.innovation = r.one("B", 0, 2)
        r.one("B", 0, 0)
        decoders = r.one("H", 1, 4096)
        self.encoder = read_network(r)
        self.unit, self.channels = 1, 1
        for kind, layer in self.encoder:
            need(kind in (1, 3), "a layer of the encoder")
            if kind == 1:
                need(layer[0] == self.channels, "channels")
                self.channels = layer[1]
                self.unit *= layer[3]
        need(self.unit <= 4096, "strides")
        self.decoders = [self.check_decoder(read_network(r)) for _ in range(decoders)]
        need(r.at == len(data), "bytes left over")

    def check_decoder(self, layers):
        channels, grown, cropped, joined = self.channels, 1, False, False
        for kind, layer in layers:
            if kind in (1, 2):
                need(layer[0] == channels, "channels")
                channels = layer[1]
            need(kind != 1 or layer[3] == 1, "stride")
            if kind == 2:
                need(not cropped, "a transposed convolution after the crop")
                grown *= layer[3]
            if kind == 4:
                need(not cropped, "a second crop")
                cropped = True
            if kind == 5:
                need(cropped and not joined, "innovation")
                joined, channels = True, channels + 1
        need(cropped and channels == 1 and grown == self.unit, "a decoder")
        need(joined == (self.innovation > 0), "innovation")
        return layers

    def run(self, layers, x, values=0, extra=()):
        for kind, layer in layers:
            if kind <= 2:
                x = convolve(kind, layer, x)
            elif kind == 3:
                x = [[v if v >= 0 else f32(v * layer) for v in row] for row in x]
            elif kind == 4:
                x = [row[:values] for row in x]
            else:
                x = x + [list(extra)]
        return x

    def encode(self, values):
        columns = -(-len(values) // self.unit) * self.unit
        rows = self.run(self.encoder, [list(values) + [0.0] * (columns - len(values))])
        return [v for row in rows for v in row]

    def decode(self, sender, codes, values, innovation=()):
        """Returns the values that `codes` stand for.

        `sender` selects the decoder, `values` is the number of values, and `innovation` holds pairs of place
        and number.
        """
        number = 0 if len(self.decoders) == 1 else sender
        need(number < len(self.decoders), "the sender has no decoder")
        columns = -(-values // self.unit)
        need(len(codes) == self.channels * columns, "number of codes")
        extra = [0.0] * values
        for place, v in innovation:
            extra[place] = v
        rows = [list(codes[c * columns:(c + 1) * columns]) for c in range(self.channels)]
        (decoded,) = self.run(self.decoders[number], rows, values, extra)
        if self.innovation == 2:
            for place, v in innovation:
                decoded[place] = v
        return decoded
