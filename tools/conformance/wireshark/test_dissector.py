#!/usr/bin/env python3
"""Compares gcodec.lua with `gcodec inspect --json` and the reference decoder, using tshark.

    python3 test_dissector.py GCODEC      GCODEC is the command line program

A stream of several updates is sent through 127.0.0.1 in irregular pieces and captured there, if the machine
allows capturing; otherwise this test is skipped with a message. The same stream, every vector and corrupted
streams are also written as captures without a network, in irregular pieces. tshark reads all of them.
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


# ------------------------------------------------------------------------------------------- output of tshark

class Tree:
    """A field of the dissection and the fields below it."""

    def __init__(self, element):
        self.element = element

    def all(self, name):
        """Returns the values of all fields with this name, in order."""
        return [e.get("show") for e in self.element.iter("field") if e.get("name") == "gcodec." + name]

    def one(self, name):
        values = self.all(name)
        assert len(values) == 1, f"{len(values)} fields gcodec.{name}"
        return values[0]

    def number(self, name):
        return int(self.one(name), 0)

    def experts(self):
        """Returns the names of the expert information items, without their prefix."""
        names = (e.get("name") for e in self.element.iter("field"))
        return [n.removeprefix("gcodec.expert.") for n in names if n.startswith("gcodec.expert.")]


def tshark(*args):
    """Runs tshark and returns its output. A Lua error in the dissector fails here."""
    command = ["tshark", "-n", "-X", f"lua_script:{os.path.join(HERE, 'gcodec.lua')}", *args]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    lines = (done.stdout + done.stderr).splitlines()
    errors = [line for line in lines if "Lua:" in line or "gcodec.lua:" in line]
    if done.returncode or errors:
        raise AssertionError(f"{command} exited with {done.returncode}: {errors or done.stderr}")
    return done.stdout


def dissect(capture, *options):
    """Returns, for each TCP stream, the top-level trees of the dissection, in order."""
    out = {}
    pdml = tshark("-r", capture, "-Y", "gcodec", "-J", "tcp gcodec", "-T", "pdml", *options)
    for element in ElementTree.fromstring(pdml):
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
    """Removes the colons that tshark prints between bytes."""
    return data.replace(":", "")


# ------------------------------------------------------------------------------------------------------ tests

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
        gradients = os.path.join(ROOT, "tools", "cli", "gradients")
        demo = [os.path.join(gradients, f"digits_convnet_step0030_worker{w}.safetensors") for w in (0, 1)]
        cls.file = os.path.join(cls.folder, "run.gcu")

        def encode(*args):
            subprocess.run([GCODEC, "--quiet", "encode", "-o", cls.file, *args], check=True)
        encode(*demo, "--codec", "topk:density=0.05", "--meta", "run=a", "--meta", "note=b c", "--step", "7",
               "--sender", "3", "--world", "8", "--no-metadata", "--rule", "*.bias=lossless", "--rule", "*1.weight=sbc:density=0.01")
        encode("--append", demo[0], "--codec", "delta", "--base", demo[1], "--step", "300", "--no-metadata")
        encode("--append", demo[0], "--codec", "natural", "--step", "20000", "--no-metadata")
        done = subprocess.run([GCODEC, "inspect", "--json", cls.file], check=True, capture_output=True)
        cls.inspected = json.loads(done.stdout)
        with open(cls.file, "rb") as f:
            cls.data = f.read()

    def path(self, name):
        return os.path.join(self.folder, name)

    def written(self, data, name="written.pcap", options=(), port=47001, **more):
        """Writes a capture of one connection that carries `data`, and returns its trees."""
        path = self.path(name)
        write_capture(path, conversation(data, 0, port, **more))
        return dissect(path, *options).get(0, [])

    def assert_as_inspected(self, trees):
        """Checks that the trees of the file agree with `gcodec inspect --json`."""
        want = self.inspected
        self.assertEqual([t.experts() for t in trees], [[]] * len(trees))
        version = {"major": trees[0].number("major"), "minor": trees[0].number("minor")}
        self.assertEqual(version, {part: want["version"][part] for part in ("major", "minor")})
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
            self.assertEqual(bool(tree.all("update.delta_runs")), update["delta"])
            # A block covers one tensor or several; inspect lists the first tensor of each block.
            names = [t["name"] for t in update["tensors"]]
            self.assertLessEqual(set(tree.all("block.name")), set(names))
            self.assertEqual(len(tree.all("block.name")), update["blocks"])
        names = [t["name"] for t in want["updates"][0]["tensors"]]
        self.assertEqual(sorted(of["manifest"][0].all("tensor.name")), sorted(names))
        self.assertEqual([t.one("end.chain.status") for t in of["end"]], ["1"] * want["segments"])

    def test_written_capture(self):
        self.assert_as_inspected(self.written(self.data))
        # Two passes, like the Wireshark window: all packets once in order, then again for their trees.
        self.assert_as_inspected(self.written(self.data, options=("-2",)))
        # With the port preference, the heuristic is not needed, so the first packets may be of one byte.
        options = ("-o", "gcodec.port:47001")
        cut = [self.data[i:i + 1] for i in range(200)] + list(pieces(self.data[200:], 1))
        self.assert_as_inspected(self.written(cut, options=options))

    def test_loopback(self):
        path = self.path("loopback.pcapng")
        server = socket.create_server(("127.0.0.1", 0))
        port = server.getsockname()[1]
        command = ["tshark", "-n", "-i", "lo", "-f", f"tcp port {port}", "-w", path]
        capture = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        log, ready = [], threading.Event()

        def listen():
            for line in capture.stderr:
                log.append(line)
                if "Capturing on" in line:
                    ready.set()
            ready.set()
        listener = threading.Thread(target=listen)
        listener.start()
        ready.wait(20)
        time.sleep(1)                               # tshark prints "Capturing on" shortly before it captures
        if capture.poll() is not None:
            listener.join()
            print(f"SKIPPED: the loopback capture: {''.join(log).strip()}")
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
        self.assert_as_inspected(trees)
        print(f"captured on lo: {os.path.getsize(path)} bytes of packets for a stream of {len(self.data)} bytes")

    def test_info_column(self):
        write_capture(self.path("info.pcap"), conversation(self.data, 0, 47001))
        info = tshark("-r", self.path("info.pcap"), "-Y", "gcodec", "-T", "fields", "-e", "_ws.col.Info")
        for want in ("gcodec 1.0", "metadata of 2 entries", "manifest of 10 tensors", "update step 7, ",
                     "update step 300, delta, ", "index of ", "end of "):
            self.assertIn(want, info)

    def test_vectors(self):
        """Compares every valid vector, one per connection, with the reference decoder."""
        valid = [v for v in self.vectors if v["result"] == "valid"]
        path = self.path("vectors.pcap")
        packets = (p for i, v in enumerate(valid) for p in conversation(bytes.fromhex(v["hex"]), i, 47001))
        write_capture(path, packets)
        streams = dissect(path)
        self.assertEqual(len(streams), len(valid))
        for i, vector in enumerate(valid):
            with self.subTest(vector["id"]):
                self.assert_as_expected(streams[i], vector)
        print(f"{len(valid)} valid vectors")

    def assert_as_expected(self, trees, vector):
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
                # An empty label means none.
                labels = [label for label in tree.all("update.label") if label]
                self.assertEqual(labels, [want["label"]] if "label" in want else [])
                runs = [(int(first), int(more)) for first, more in zip(tree.all("delta.first"), tree.all("delta.more"))]
                self.assertEqual(runs, [(d["first"], d["more"]) for d in want.get("delta", [])])
                self.assertEqual([plain(t) for t in tree.all("delta.result")], [d["result"] for d in want.get("delta", [])])
                blocks = want["blocks"]
                self.assertEqual([int(t) for t in tree.all("block.tensor")], [b["scope"][1] for b in blocks])
                self.assertEqual([decoder.SUPPORTS[int(s)] for s in tree.all("block.support")], [b["support"] for b in blocks])
                self.assertEqual([decoder.VALUES[int(v)] for v in tree.all("block.values")], [b["values"] for b in blocks])
                stored = [b for b in blocks if b["support"] in ("gaps-rice", "gaps-tokens", "seeded") or "groups" in b]
                counted = [sum(m for _, m in b["groups"]) if "groups" in b else len(b["positions"]) for b in stored]
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
        """Checks that the block after frequency tables is found, for tables of every length in bits."""
        small = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 14, 15, 16, 18, 240, 256]
        tables = [made.table({**dict(enumerate(small[:n])), n: 1000}, n) for n in range(2, len(small))]
        tables += [made.table({3: f, 9: 1000}, 9) for f in small[1:]]
        for first in range(0, len(tables), 8):
            group = tables[first:first + 8]
            update = made.update(made.MAN, [made.block(b"\0\1", 1, b"", 2, made.CONSTANT)], tables=group)
            data = made.stream(made.frame(1, made.MAN), made.frame(2, update, 1))
            tree = frames_of(self.written(data))[1]
            self.assertEqual([plain(t) for t in tree.all("update.table")], [t.hex() for t in group])
            self.assertEqual((tree.experts(), tree.one("block.name")), ([], "layer.b"))

    def test_invalid_vectors(self):
        """Checks that no invalid vector causes a Lua error, and that a broken frame or preamble is marked."""
        invalid = [v for v in self.vectors if v["result"] == "invalid" and v["hex"]]
        path = self.path("invalid.pcap")
        packets = (p for i, v in enumerate(invalid) for p in conversation(bytes.fromhex(v["hex"]), i, 47001))
        write_capture(path, packets)
        streams = dissect(path, "-o", "gcodec.port:47001")
        marked = 0
        for i, vector in enumerate(invalid):
            experts = {e for t in streams.get(i, []) for e in t.experts()}
            marked += bool(experts)
            # A connection may carry another stream after the end of the first; a file may not.
            if vector["error"]["kind"] in ("bad_magic", "bad_sync") and vector["id"] != "stream/preamble-after-the-end":
                self.assertTrue(experts, vector["id"])
        print(f"{len(invalid)} invalid vectors, {marked} of them marked")

    def test_corruption(self):
        frames = self.inspected["frames"]
        update = next(f for f in frames if f["kind"] == "update")
        # A flipped bit in a body: this frame is marked, the others are not.
        body = bytearray(self.data)
        body[update["offset"] + 24 + 40] ^= 1
        trees = self.written(bytes(body))
        got = {t.number("frame.number"): t.experts() for t in frames_of(trees)}
        self.assertEqual(got, {f["number"]: ["body_crc"] if f is update else [] for f in frames})
        # A flipped bit in a header: its frame is lost, the next one is found, and the chain is not checked.
        header = bytearray(self.data)
        header[update["offset"] + 9] ^= 1
        trees = self.written(bytes(header))
        self.assertEqual({e for t in trees for e in t.experts()}, {"no_frame"})
        lost = [plain(t.one("skipped")) for t in trees if t.all("skipped")]
        self.assertEqual("".join(lost), header[update["offset"]:update["offset"] + update["bytes"]].hex())
        self.assertEqual(len(frames_of(trees)), len(frames) - 1)
        # A missing frame: the end frame is marked.
        cut = self.data[:update["offset"]] + self.data[update["offset"] + update["bytes"]:]
        first = [t.experts() for t in self.written(cut) if t.experts()]
        self.assertEqual(sorted(first[0]), ["chain", "lost"])
        # A flipped bit in the preamble.
        preamble = bytearray(self.data)
        preamble[9] ^= 4
        self.assertEqual(self.written(bytes(preamble))[0].experts(), ["preamble_crc"])
        # A stream that ends in the middle of a frame.
        trees = self.written(self.data[:update["offset"] + 100])
        self.assertEqual(len(frames_of(trees)), update["number"])
        # Without reassembly, a frame that fits in one packet is shown, and any other frame is marked.
        alone = self.written(self.data, options=("-o", "tcp.desegment_tcp_streams:FALSE", "-o", "gcodec.port:47001"))
        self.assertIn("truncated", {e for t in alone for e in t.experts()})

    def test_capture_that_begins_in_a_frame(self):
        """Reads a capture without the start of the connection, by port preference or by "Decode As"."""
        update = [f for f in self.inspected["frames"] if f["kind"] == "update"][1]
        rest = self.data[update["offset"] - 50:]
        for options in (("-o", "gcodec.port:47001"), ("-d", "tcp.port==47001,gcodec")):
            trees = self.written(rest, options=options, start=False)
            self.assertEqual(trees[0].experts(), ["no_frame"])
            got = [KINDS[t.number("frame.kind")] for t in frames_of(trees)]
            self.assertEqual(got, [f["kind"] for f in self.inspected["frames"] if f["offset"] >= update["offset"] - 50])
            self.assertEqual([t.all("frame.number") for t in frames_of(trees)], [[]] * len(got))
        self.assertEqual(self.written(rest, start=False), [])

    def test_large_bodies(self):
        """Checks that a body larger than the preference allows is not reassembled."""
        body = random.Random(5).randbytes((1 << 20) + 5)
        header = struct.pack("<4sHHQI", b"\xd3gcf", 0xF123, 0, len(body), zlib.crc32(body))
        end_at = self.data.rindex(b"\xd3gcf")
        data = self.data[:16] + header + struct.pack("<I", zlib.crc32(header)) + body + self.data[end_at:]
        [frame, _] = frames_of(self.written(data))
        self.assertEqual((frame.experts(), frame.one("frame.body_crc.status")), ([], "1"))
        trees = self.written(data, options=("-o", "gcodec.max_body:1"))
        self.assertEqual([t.experts()[0] for t in trees if t.experts()][:2], ["too_large", "no_frame"])


if __name__ == "__main__":
    unittest.main()
