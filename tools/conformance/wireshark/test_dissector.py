#!/usr/bin/env python3
"""Holds gcodec.lua against `gcodec inspect --json` and the reference decoder, with tshark.

    python3 test_dissector.py GCODEC      GCODEC is the command line program

A stream of several updates goes through 127.0.0.1 in odd pieces and is captured there (where capturing is allowed; that it is not is said).
The same stream, every vector, and streams that were damaged are written as captures by hand, cut into pieces as odd: tshark reads them all.
"""

import json
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import xml.etree.ElementTree as ElementTree
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..", "..")
sys.path[:0] = [os.path.join(ROOT, "spec", "reference"), HERE]
import decoder  # noqa: E402
import test_decoder as made  # noqa: E402
from capture import conversation, pieces, write_capture  # noqa: E402

GCODEC = os.path.abspath(sys.argv.pop(1)) if __name__ == "__main__" else "gcodec"
KINDS = {1: "manifest", 2: "update", 3: "index_set", 4: "model", 5: "end", 0x8001: "metadata", 0x8002: "index"}


# ------------------------------------------------------------------------------------------------- what tshark says

class Tree:
    """A field of the dissection and those below it."""

    def __init__(self, element):
        self.element = element

    def all(self, name):
        """Values of all fields of this name, in order."""
        return [e.get("show") for e in self.element.iter("field") if e.get("name") == "gcodec." + name]

    def one(self, name):
        values = self.all(name)
        assert len(values) == 1, f"{len(values)} fields gcodec.{name}"
        return values[0]

    def number(self, name):
        return int(self.one(name), 0)

    def experts(self):
        """Names of the expert information, without their prefix."""
        names = (e.get("name") for e in self.element.iter("field"))
        return [n.removeprefix("gcodec.expert.") for n in names if n.startswith("gcodec.expert.")]


def tshark(*args):
    """What tshark prints; a fault of the dissector's own fails here."""
    command = ["tshark", "-n", "-X", f"lua_script:{os.path.join(HERE, 'gcodec.lua')}", *args]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    faults = [line for line in (done.stdout + done.stderr).splitlines() if "Lua:" in line or "gcodec.lua:" in line]
    if done.returncode or faults:
        raise AssertionError(f"{command} gave {done.returncode}: {faults or done.stderr}")
    return done.stdout


def dissect(capture, *options):
    """For each TCP stream the top trees of the dissection, in order."""
    out = {}
    for element in ElementTree.fromstring(tshark("-r", capture, "-Y", "gcodec", "-J", "tcp gcodec", "-T", "pdml", *options)):
        protos = {}
        for proto in element:
            protos.setdefault(proto.get("name"), []).append(proto)
        if "gcodec" in protos:
            stream = next(e.get("show") for e in protos["tcp"][0].iter("field") if e.get("name") == "tcp.stream")
            out.setdefault(int(stream), []).extend(Tree(e) for e in protos["gcodec"])
    return out


def frames_of(trees):
    return [t for t in trees if t.all("frame.kind")]


def plain(data):
    """Bytes as tshark prints them."""
    return data.replace(":", "")


# ------------------------------------------------------------------------------------------------- tests

class Dissector(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="gcodec-wireshark-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        print(tshark("--version").splitlines()[0])
        with open(os.path.join(ROOT, "spec", "vectors", "index.json"), encoding="utf-8") as f:
            cls.vectors = json.load(f)["vectors"]
        demo = [os.path.join(ROOT, "tools", "cli", "gradients", f"digits_convnet_step0030_worker{w}.safetensors") for w in (0, 1)]
        cls.file = os.path.join(cls.folder, "run.gcu")

        def encode(*args):
            subprocess.run([GCODEC, "--quiet", "encode", "-o", cls.file, *args], check=True)
        encode(*demo, "--codec", "topk:density=0.05", "--meta", "run=a", "--meta", "note=b c", "--step", "7",
               "--sender", "3", "--world", "8", "--rule", "*.bias=lossless", "--rule", "*1.weight=sbc:density=0.01")
        encode("--append", demo[0], "--codec", "delta", "--base", demo[1], "--step", "300")
        encode("--append", demo[0], "--codec", "natural", "--step", "20000")
        said = subprocess.run([GCODEC, "inspect", "--json", cls.file], check=True, capture_output=True)
        cls.inspected = json.loads(said.stdout)
        with open(cls.file, "rb") as f:
            cls.data = f.read()

    def path(self, name):
        return os.path.join(self.folder, name)

    def by_hand(self, data, name="hand.pcap", options=(), port=47001, **more):
        """The trees of one connection that carries `data`."""
        path = self.path(name)
        write_capture(path, conversation(data, 0, port, **more))
        return dissect(path, *options).get(0, [])

    def as_inspected(self, trees):
        """The trees of the file say what `gcodec inspect --json` says."""
        want = self.inspected
        self.assertEqual([t.experts() for t in trees], [[]] * len(trees))
        self.assertEqual((trees[0].number("major"), trees[0].number("minor")), (want["version"]["major"], want["version"]["minor"]))
        self.assertEqual(trees[0].one("crc.status"), "1")
        frames = frames_of(trees)
        got = [{"number": t.number("frame.number"), "kind": KINDS[t.number("frame.kind")], "offset": t.number("frame.offset"),
                "bytes": 24 + t.number("frame.body_len")} for t in frames]
        self.assertEqual(got, want["frames"])
        self.assertEqual({t.one("frame.body_crc.status") for t in frames}, {"1"})
        of = {kind: [t for t, g in zip(frames, got) if g["kind"] == kind] for kind in KINDS.values()}
        self.assertEqual([(plain(t.one("manifest.id")), t.number("manifest.tensor_count")) for t in of["manifest"]],
                         [(m["id"], m["tensors"]) for m in want["manifests"]])
        metadata = {k: v for t in of["metadata"] for k, v in zip(t.all("metadata.key"), t.all("metadata.value"))}
        self.assertEqual(metadata, want["metadata"])
        updates = [{key: t.number(f"update.{key}") for key in
                    ("step", "round", "sender", "world", "contributors", "inner_steps")} for t in of["update"]]
        self.assertEqual(updates, [{key: u[key] for key in updates[0]} for u in want["updates"]])
        for tree, update in zip(of["update"], want["updates"], strict=True):
            self.assertEqual(tree.one("update.label"), update["label"])
            self.assertEqual(tree.number("update.table_count"), update["tables"])
            self.assertEqual(tree.number("update.block_count"), update["blocks"])
            self.assertEqual(len(tree.all("block.len")), update["blocks"])
            self.assertEqual(["none", "sum", "mean"][tree.number("update.reduction")], update["reduction"])
            self.assertEqual(bool(tree.all("update.delta_tensors")), update["delta"])
            # One block for each tensor or one for many: the first tensor of each is one that inspect lists.
            names = [t["name"] for t in update["tensors"]]
            self.assertLessEqual(set(tree.all("block.name")), set(names))
            self.assertEqual(len(tree.all("block.name")), update["blocks"])
        names = [t["name"] for t in want["updates"][0]["tensors"]]
        self.assertEqual(sorted(of["manifest"][0].all("tensor.name")), sorted(names))
        self.assertEqual([t.one("end.chain.status") for t in of["end"]], ["1"] * want["segments"])

    def test_by_hand(self):
        self.as_inspected(self.by_hand(self.data))
        # As the window does it: all packets once in order, and then again for their trees.
        self.as_inspected(self.by_hand(self.data, options=("-2",)))
        # With the preference the beginning needs no heuristic.
        options = ("-o", "gcodec.port:47001")
        cut = [self.data[i:i + 1] for i in range(200)] + list(pieces(self.data[200:], 1))
        self.as_inspected(self.by_hand(cut, options=options))

    def test_loopback(self):
        path = self.path("loopback.pcapng")
        server = socket.create_server(("127.0.0.1", 0))
        port = server.getsockname()[1]
        command = ["tshark", "-n", "-i", "lo", "-f", f"tcp port {port}", "-w", path]
        capture = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        said, ready = [], threading.Event()

        def listen():
            for line in capture.stderr:
                said.append(line)
                if "Capturing on" in line:
                    ready.set()
            ready.set()
        listener = threading.Thread(target=listen)
        listener.start()
        ready.wait(20)
        time.sleep(1)                               # "Capturing on" is said a little before it is so
        if capture.poll() is not None:
            listener.join()
            print(f"SKIPPED: the loopback capture: {''.join(said).strip()}")
            self.skipTest("capturing on lo is not allowed")
        received = []

        def receive():
            connection, _ = server.accept()
            while got := connection.recv(1 << 16):
                received.append(got)
            connection.close()
        receiver = threading.Thread(target=receive)
        receiver.start()
        with socket.create_connection(("127.0.0.1", port)) as sender:
            sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in pieces(self.data, 9):
                sender.sendall(piece)
                time.sleep(0.002)
        receiver.join()
        server.close()
        self.assertEqual(b"".join(received), self.data)
        time.sleep(1)
        capture.terminate()
        capture.wait(20)
        listener.join()
        capture.stderr.close()
        [trees] = dissect(path).values()
        self.as_inspected(trees)
        print(f"captured on lo: {os.path.getsize(path)} bytes of packets for {len(self.data)} of a stream")

    def test_info_column(self):
        write_capture(self.path("info.pcap"), conversation(self.data, 0, 47001))
        said = tshark("-r", self.path("info.pcap"), "-Y", "gcodec", "-T", "fields", "-e", "_ws.col.Info")
        for want in ("gcodec 1.0", "metadata of 2 entries", "manifest of 10 tensors", "update step 7, ", "update step 300, delta, ",
                     "index of ", "end of "):
            self.assertIn(want, said)

    def test_vectors(self):
        """Every valid vector is a connection; the reference decoder says what is in it."""
        valid = [v for v in self.vectors if v["result"] == "valid"]
        path = self.path("vectors.pcap")
        packets = (p for i, v in enumerate(valid) for p in conversation(bytes.fromhex(v["hex"]), i, 47001))
        write_capture(path, packets)
        streams = dissect(path)
        self.assertEqual(len(streams), len(valid))
        for i, vector in enumerate(valid):
            with self.subTest(vector["id"]):
                self.as_expected(streams[i], vector)
        print(f"{len(valid)} valid vectors")

    def as_expected(self, trees, vector):
        self.assertEqual([t.experts() for t in trees], [[]] * len(trees))
        frames = frames_of(trees)
        reader = decoder.Decoder(bytes.fromhex(vector["hex"]), vector.get("limits"))
        reader.stream()
        got = [(t.number("frame.kind"), 24 + t.number("frame.body_len")) for t in frames]
        self.assertEqual(got, reader.met)
        for tree, want in zip(frames, vector["expected"]["frames"], strict=True):
            if want["kind"] == "manifest":
                self.assertEqual(plain(tree.one("manifest.id")), want["id"])
                self.assertEqual(tree.all("tensor.name"), [t["name"] for t in want["tensors"]])
                self.assertEqual(tree.all("tensor.shape"), [str(t["shape"]) for t in want["tensors"]])
                self.assertEqual([decoder.DTYPES[int(d)][0] for d in tree.all("tensor.dtype")], [t["dtype"] for t in want["tensors"]])
                shards = [f"{g} from {o}" for t in want["tensors"] for g, o in t.get("shard", [])]
                self.assertEqual(tree.all("tensor.shard"), shards)
                self.assertEqual([int(r) for r in tree.all("tensor.rows")], [t["matrix"][0] for t in want["tensors"] if "matrix" in t])
            elif want["kind"] == "update":
                for key in ("step", "round", "sender", "world", "contributors", "inner_steps", "part", "reduction"):
                    self.assertEqual(tree.number(f"update.{key}"), want[key], key)
                self.assertEqual(tree.one("frame.last") in ("1", "True"), want["last"])
                self.assertEqual(tree.all("update.label"), [want["label"]] if "label" in want else [])
                self.assertEqual([int(t) for t in tree.all("delta.tensor")], [d["tensor"] for d in want.get("delta", [])])
                self.assertEqual([plain(t) for t in tree.all("delta.result")], [d["result"] for d in want.get("delta", [])])
                blocks = want["blocks"]
                self.assertEqual([int(t) for t in tree.all("block.tensor")], [b["scope"][1] for b in blocks])
                self.assertEqual([decoder.SUPPORTS[int(s)] for s in tree.all("block.support")], [b["support"] for b in blocks])
                self.assertEqual([decoder.VALUES[int(v)] for v in tree.all("block.values")], [b["values"] for b in blocks])
                counted = [len(b["positions"]) for b in blocks if b["support"] in ("gaps-rice", "gaps-tokens", "seeded")]
                self.assertEqual([int(m) for m in tree.all("block.positions")], counted)
                ranges = [b["scope"][2:] for b in blocks if b["scope"][0] & 3 == 2]
                self.assertEqual([[int(a), int(b)] for a, b in zip(tree.all("block.start"), tree.all("block.elements"))], ranges)
            elif want["kind"] == "metadata" and tree.one("metadata.storage") == "0":
                self.assertEqual(dict(zip(tree.all("metadata.key"), tree.all("metadata.value"))), want["entries"])
            elif want["kind"] == "model":
                self.assertEqual((plain(tree.one("model.id")), tree.one("model.format"), tree.one("model.name")),
                                 (want["id"], want["format"], want["name"]))
            elif want["kind"] == "index":
                self.assertEqual(len(tree.all("index.frame")), len(want["frames"]))
            elif want["kind"] == "index_set":
                self.assertEqual((tree.number("update.step"), tree.number("set.leader")), (want["step"], want["leader"]))
            elif want["kind"] == "end":
                self.assertEqual((tree.number("end.frame_count"), tree.number("end.index_offset"), tree.one("end.chain.status")),
                                 (want["frame_count"], want["index_offset"], "1"))

    def test_tables(self):
        """Tables of frequencies of every length in bits, one after the other: the block behind them is found."""
        small = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 14, 15, 16, 18, 240, 256]
        tables = [made.table({**dict(enumerate(small[:n])), n: 1000}, n) for n in range(2, len(small))]
        tables += [made.table({3: f, 9: 1000}, 9) for f in small[1:]]
        for first in range(0, len(tables), 8):
            group = tables[first:first + 8]
            update = made.update(made.MAN, [made.block(b"\0\1", 1, b"", 2, made.CONSTANT)], tables=group)
            data = made.stream(made.frame(1, made.MAN), made.frame(2, update, 1))
            tree = frames_of(self.by_hand(data))[1]
            self.assertEqual([plain(t) for t in tree.all("update.table")], [t.hex() for t in group])
            self.assertEqual((tree.experts(), tree.one("block.name")), ([], "layer.b"))

    def test_invalid_vectors(self):
        """Whatever is in them, the dissector is none the worse; and what breaks a frame as such is marked."""
        invalid = [v for v in self.vectors if v["result"] == "invalid" and v["hex"]]
        path = self.path("invalid.pcap")
        packets = (p for i, v in enumerate(invalid) for p in conversation(bytes.fromhex(v["hex"]), i, 47001))
        write_capture(path, packets)
        streams = dissect(path, "-o", "gcodec.port:47001")
        marked = 0
        for i, vector in enumerate(invalid):
            experts = {e for t in streams.get(i, []) for e in t.experts()}
            marked += bool(experts)
            # After the end of a stream a connection may carry another one; a file may not.
            if vector["error"]["kind"] in ("bad_magic", "bad_sync") and vector["id"] != "stream/preamble-after-the-end":
                self.assertTrue(experts, vector["id"])
        print(f"{len(invalid)} invalid vectors, {marked} of them marked")

    def test_damage(self):
        frames = self.inspected["frames"]
        update = next(f for f in frames if f["kind"] == "update")
        # In a body: this frame is marked, the others are as they were.
        body = bytearray(self.data)
        body[update["offset"] + 24 + 40] ^= 1
        trees = self.by_hand(bytes(body))
        got = {t.number("frame.number"): t.experts() for t in frames_of(trees)}
        self.assertEqual(got, {f["number"]: ["body_crc"] if f is update else [] for f in frames})
        # In a header: its frame is lost, and the next one is found; the end frame's chain counts from there no more.
        header = bytearray(self.data)
        header[update["offset"] + 9] ^= 1
        trees = self.by_hand(bytes(header))
        self.assertEqual({e for t in trees for e in t.experts()}, {"no_frame"})
        lost = [plain(t.one("skipped")) for t in trees if t.all("skipped")]
        self.assertEqual("".join(lost), header[update["offset"]:update["offset"] + update["bytes"]].hex())
        self.assertEqual(len(frames_of(trees)), len(frames) - 1)
        # A frame that is not there: the end frame says so.
        cut = self.data[:update["offset"]] + self.data[update["offset"] + update["bytes"]:]
        first = [t.experts() for t in self.by_hand(cut) if t.experts()]
        self.assertEqual(sorted(first[0]), ["chain", "lost"])
        # The preamble.
        preamble = bytearray(self.data)
        preamble[9] ^= 4
        self.assertEqual(self.by_hand(bytes(preamble))[0].experts(), ["preamble_crc"])
        # The stream ends in the middle of a frame.
        trees = self.by_hand(self.data[:update["offset"] + 100])
        self.assertEqual(len(frames_of(trees)), update["number"])
        # Without reassembly a frame is shown where it fits a packet, and what does not is marked.
        alone = self.by_hand(self.data, options=("-o", "tcp.desegment_tcp_streams:FALSE", "-o", "gcodec.port:47001"))
        self.assertIn("truncated", {e for t in alone for e in t.experts()})

    def test_begun_in_the_middle(self):
        """A capture without the connection's beginning, by the preference for a port or by "Decode As"."""
        update = [f for f in self.inspected["frames"] if f["kind"] == "update"][1]
        rest = self.data[update["offset"] - 50:]
        for options in (("-o", "gcodec.port:47001"), ("-d", "tcp.port==47001,gcodec")):
            trees = self.by_hand(rest, options=options, start=False)
            self.assertEqual(trees[0].experts(), ["no_frame"])
            got = [KINDS[t.number("frame.kind")] for t in frames_of(trees)]
            self.assertEqual(got, [f["kind"] for f in self.inspected["frames"] if f["offset"] >= update["offset"] - 50])
            self.assertEqual([t.all("frame.number") for t in frames_of(trees)], [[]] * len(got))
        self.assertEqual(self.by_hand(rest, start=False), [])

    def test_large_bodies(self):
        """A body beyond the preference is not waited for."""
        body = random.Random(5).randbytes((1 << 20) + 5)
        header = struct.pack("<4sHHQI", b"\xd3gcf", 0xF123, 0, len(body), zlib.crc32(body))
        end_at = self.data.rindex(b"\xd3gcf")
        data = self.data[:16] + header + struct.pack("<I", zlib.crc32(header)) + body + self.data[end_at:]
        [frame, _] = frames_of(self.by_hand(data))
        self.assertEqual((frame.experts(), frame.one("frame.body_crc.status")), ([], "1"))
        trees = self.by_hand(data, options=("-o", "gcodec.max_body:1"))
        self.assertEqual([t.experts()[0] for t in trees if t.experts()][:2], ["too_large", "no_frame"])


if __name__ == "__main__":
    unittest.main()
