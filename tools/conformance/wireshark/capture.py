#!/usr/bin/env python3
"""Writes a capture of a stream on TCP. It needs neither a network nor the permission to capture.

    python3 capture.py STREAM.gcu CAPTURE.pcap [PORT]
"""

import ipaddress
import random
import struct
import sys


def sum16(data):
    """Returns the Internet checksum of `data`: RFC 1071."""
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def packet(source, target, seq, ack, flags, payload=b""):
    """Returns `payload` in a TCP, IPv4 and Ethernet packet; `source` and `target` are (address, port)."""
    (src, sport), (dst, dport) = source, target
    src, dst = ipaddress.ip_address(src).packed, ipaddress.ip_address(dst).packed
    tcp = struct.pack(">HHII", sport, dport, seq & 0xFFFFFFFF, ack & 0xFFFFFFFF)
    tcp += struct.pack(">BBHHH", 5 << 4, flags, 65535, 0, 0) + payload
    check = sum16(src + dst + struct.pack(">BBH", 0, 6, len(tcp)) + tcp)
    tcp = tcp[:16] + struct.pack(">H", check) + tcp[18:]
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + src + dst
    ip = ip[:10] + struct.pack(">H", sum16(ip)) + ip[12:]
    return b"\2\0\0\0\0\2" + b"\2\0\0\0\0\1" + b"\x08\0" + ip + tcp


def pieces(data, seed):
    """Yields `data` in pieces of irregular sizes, from one byte to a full packet.

    The first piece has at least half of the magic, which the dissector's heuristic needs.
    """
    rng, at = random.Random(seed), 0
    while at < len(data):
        size = rng.choice((1, 3, 17, 40, 333, 1400)) if at else rng.choice((4, 7, 11, 16, 50, 900))
        yield data[at:at + size]
        at += size


def conversation(data, number, port, finish=True, start=True):
    """Yields the packets of one connection that carries `data`, a byte string or a list of pieces.

    Without `start`, the packets that open the connection are missing; without `finish`, those that close it.
    """
    FIN, SYN, ACK = 1, 2, 16
    a, b = ("10.0.0.1", 20000 + number), ("10.0.0.2", port)
    seq, ack = 1000, 5000
    if start:
        yield packet(a, b, seq, 0, SYN)
        yield packet(b, a, ack, seq + 1, SYN | ACK)
        yield packet(a, b, seq + 1, ack + 1, ACK)
    seq, ack = seq + 1, ack + 1
    for piece in data if isinstance(data, list) else pieces(data, number):
        yield packet(a, b, seq, ack, ACK, piece)
        seq += len(piece)
    if finish:
        yield packet(a, b, seq, ack, FIN | ACK)
        yield packet(b, a, ack, seq + 1, FIN | ACK)
        yield packet(a, b, seq + 1, ack + 1, ACK)


def write_capture(path, packets):
    with open(path, "wb") as f:
        f.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, 1))
        for i, data in enumerate(packets):
            f.write(struct.pack("<IIII", i // 1000, i % 1000 * 1000, len(data), len(data)) + data)


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as stream:
        write_capture(sys.argv[2], conversation(stream.read(), 0, int(sys.argv[3]) if len(sys.argv) > 3 else 9000))
