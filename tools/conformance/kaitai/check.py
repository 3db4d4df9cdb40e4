#!/usr/bin/env python3
"""Compares spec/gcodec.ksy and spec/gcodec.magic with the vectors and the reference decoder.

    python3 check.py FOLDER      FOLDER/gcodec.py is the compiled description (compile.js)

Every valid vector is parsed. Its fields must have the values that the vector expects and that the reference
decoder read, and every byte must belong to a field. An invalid vector must be refused if the description can
detect the violation; no invalid vector may cause anything but a refusal.
"""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
SPEC = os.path.join(ROOT, "spec")
sys.path[:0] = [os.path.join(SPEC, "reference"), sys.argv[1]]
import decoder  # noqa: E402
import test_decoder as made  # noqa: E402
from kaitaistruct import KaitaiStream, KaitaiStruct, KaitaiStructError  # noqa: E402

from gcodec import Gcodec  # noqa: E402

# Exceptions by which the generated code refuses bytes.
REFUSALS = (KaitaiStructError, EOFError, UnicodeDecodeError)
# Errors that the description must detect in every vector. The others need checksums, other frames or decoded
# integers.
SEEN = {"bad_magic", "bad_sync", "truncated"}


def parse(data):
    stream = Gcodec(KaitaiStream(io.BytesIO(data)))
    stream._read()
    return stream


def same(what, got, want):
    if got != want:
        raise AssertionError(f"{what}: got {got!r}, expected {want!r}")


def leaves(struct, base=0):
    """Yields (first byte, end, name) of every field that is not a structure, as offsets in the stream."""
    for name in struct.SEQ_FIELDS:
        if name not in struct._debug:               # the field is absent: its `if` is false
            continue
        value, place = getattr(struct, name), struct._debug[name]
        several = isinstance(value, list)
        for one, at in zip(value, place["arr"]) if several else [(value, place)]:
            if not isinstance(one, KaitaiStruct):
                yield base + at["start"], base + at["end"], name
            elif one._io is struct._io:
                yield from leaves(one, base)
            else:
                yield from leaves(one, base + at["start"])


def check_places(stream, data):
    at = 0
    for first, last, name in leaves(stream):
        if first > at:
            raise AssertionError(f"bytes {at} to {first}, before {name}, belong to no field")
        at = max(at, last)
    same("bytes of all fields", at, len(data))


def name_of(value):
    """Returns the name of an enum member; a number outside the enum is returned unchanged."""
    return value.name if hasattr(value, "name") else value


def numbers(fields):
    return [field.value for field in fields]


def check_manifest(body, frame, _):
    names, previous = [], b""
    for tensor in body.tensors:
        previous = previous[:tensor.len_prefix.value] + tensor.suffix
        names.append(previous.decode())
    same("tensor_count", body.tensor_count.value, len(frame["tensors"]))
    for name, tensor, want in zip(names, body.tensors, frame["tensors"]):
        got = {"name": name, "dtype": name_of(tensor.dtype).removesuffix("_"), "shape": numbers(tensor.dims)}
        if tensor.has_matrix:
            got["matrix"] = [tensor.matrix.rows.value, tensor.matrix.cols.value]
        if tensor.has_shard:
            got["shard"] = [[d.global_dim.value, d.offset.value] for d in tensor.shard]
        same("tensor", got, want)


def scope_of(scope):
    form = name_of(scope.form)
    extra = {"whole": [], "several": ["count"], "range": ["start", "len"]}[form]
    flags = scope.form.value | scope.add << 2
    return [flags, scope.tensor.value, *(getattr(scope, field).value for field in extra)]


def check_support(support, positions, name):
    """Checks the number of positions, and the fields that can be checked for the kind."""
    kind = name_of(support.kind).replace("_", "-")
    if name is not None:
        same("support", kind, name)
    if positions is None:
        return
    if kind in ("gaps-rice", "gaps-tokens", "seeded"):
        same("m", support.body.m.value, len(positions))
    if kind == "gaps-rice" and hasattr(support.body, "chunks"):
        lengths = [chunk.span.value for chunk in support.body.chunks]
        same("spans", sum(lengths), positions[-1] + 1)
        same("runs", [len(r.unary) for r in support.body.runs], [c.len_unary.value for c in support.body.chunks])
    if kind == "gaps-tokens" and positions:
        gaps = [b - a - 1 for a, b in zip([-1, *positions], positions)]
        coded = support.body.gaps
        runs = [coded.segment] if hasattr(coded, "segment") else [s.segment for s in coded.segments]
        length = 1 << coded.segment_log if len(runs) > 1 else len(gaps)
        for i, run in enumerate(runs):
            bits = sum(max(0, gap.bit_length() - 2) for gap in gaps[i * length:(i + 1) * length])
            same("bytes of raw bits", len(run.raw), (bits + 7) // 8)
    if kind == "rows":
        rows = sorted({p // support.body.len_row.value for p in positions})
        same("rows", len(rows) * support.body.len_row.value, len(positions))
        check_support(support.body.rows, rows, None)
    if kind == "bitmap":
        same("ones", sum(b.bit_count() for b in support.body.bytes), len(positions))


def check_values(values, want):
    kind = name_of(values.kind).replace("_", "-")
    same("values", kind, want["values"])
    m = len(want["numbers"]) if isinstance(want["numbers"], list) else len(want["numbers"].get("diffs", []))
    body = values.body
    if kind == "floats" and body.stored == 2:
        same("numbers", [body.numbers[i:i + 4][::-1].hex() for i in range(0, 4 * m, 4)], want["numbers"])
    if kind == "sign" and hasattr(body, "signs") and name_of(body.signs.coding) == "plane":
        same("bytes of signs", len(body.signs.body.bytes), (m + 7) // 8)
    if kind == "latent":
        same("model", body.model_id.bytes.hex(), want["numbers"]["model"])
        same("codes' shape", numbers(body.dims), want["numbers"]["shape"])
    if kind in ("low-rank", "dct"):
        same("rows x cols", body.rows.value * body.cols.value, m)
    ints = getattr(getattr(body, "codes", None), "ints", None) if kind in ("pow2", "minifloat", "affine") else None
    if ints is not None and name_of(ints.coding) == "packed" and kind != "pow2":
        same("bytes of codes", len(ints.body.plane.bytes), (m * ints.body.width + 7) // 8)


def check_update(body, frame, met):
    same("manifest", body.manifest_id.bytes.hex(), frame["manifest"])
    for field in ("step", "round", "sender", "world", "contributors", "inner_steps", "part"):
        same(field, getattr(body, field).value, frame[field])
    same("reduction", name_of(body.reduction), frame["reduction_name"])
    attributes = {name_of(a.kind): a.body for a in body.attributes}
    # An empty label means none.
    same("label", getattr(attributes.get("label"), "value", None) or None, frame.get("label"))
    runs = getattr(attributes.get("delta"), "runs", None)
    got = runs and [{"first": r.first.value, "more": r.more.value, "base": r.base.hex(), "result": r.result.hex()}
                    for r in runs]
    same("delta", got, frame.get("delta"))
    for table in body.tables:
        check_table(table)
    _, _, head_len, _, blocks = met
    same("head", body._debug["block_count"]["end"], head_len)
    same("block_count", body.block_count.value, len(frame["blocks"]))
    same("blocks' lengths", [b.len.len + b.len.value for b in body.blocks], [length for _, _, length, _ in blocks])
    for block, want in zip(body.blocks, frame["blocks"]):
        same("scope", scope_of(block.body.scope), want["scope"])
        check_support(block.body.support, want["positions"], want["support"])
        if "groups" in want:
            groups = block.body.support.body.by_base.groups
            same("groups", [[g.class_count.value, g.m.value] for g in groups], want["groups"])
        check_values(block.body.values, want)


def check_table(table):
    """Checks that the frequencies leave some of 4096 for `rest`, and that the last symbol has one."""
    freq = [f.value for f in table.frequencies]
    if sum(freq) > 4095 or freq and table.rest_minus_first != table.last_minus_first and freq[-1] == 0:
        raise AssertionError(f"frequencies {freq}")


def check_tables():
    """Checks consecutive frequency tables of every length in bits."""
    small = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 14, 15, 16, 18, 240, 256]
    wanted = [{**dict(enumerate(small[:n])), n: 1000} for n in range(2, len(small))]
    wanted += [{0: f, 1: 1000} for f in small[1:]]
    for first in range(0, len(wanted), 8):
        group = [(freq, max(freq)) for freq in wanted[first:first + 8]]
        block = made.block(b"\0\1", 1, b"", 2, made.CONSTANT)
        update = made.update(made.MAN, [block], tables=[made.table(*t) for t in group])
        data = made.stream(made.frame(1, made.MAN), made.frame(2, update, 1))
        stream = parse(data)
        check_places(stream, data)
        body = stream.segments[0].frames[1].body
        for table, (freq, rest) in zip(body.tables, group, strict=True):
            want = [freq.get(s, 0) for s in range(table.first, rest)]
            same("frequencies", [f.value for f in table.frequencies], want)
        same("tensor", body.blocks[0].body.scope.tensor.value, 1)


def check_index_set(body, frame, _):
    same("manifest", body.manifest_id.bytes.hex(), frame["manifest"])
    for field in ("step", "leader", "world"):
        same(field, getattr(body, field).value, frame[field])
    same("scope", scope_of(body.scope), frame["scope"])
    check_support(body.support, frame["positions"], None)


def check_model(body, frame, _):
    same("id", body.model_id.bytes.hex(), frame["id"])
    same("format", body.format.value, frame["format"])
    same("name", body.name.value, frame["name"])
    same("weights_len", body.len_weights.value, frame["weights_len"])
    same("storage", min(body.storage.value, 1), frame["storage"])
    if name_of(body.storage) == "by_reference":
        same("location", body.location.value, frame["location"])
    elif name_of(body.storage) == "inline":
        same("weights", len(body.weights), frame["weights_len"])


def check_metadata(body, frame, _):
    if name_of(body.storage) == "zstd":
        same("magic of zstd", body.compressed[:4].hex(), "28b52ffd")
        text = decoder.zstd.decompress(body.compressed)
        same("plain_len", body.len_plain.value, len(text))
        body.plain = Gcodec.PlainMetadata(KaitaiStream(io.BytesIO(text)))
        body.plain._read()
    same("entries", {e.key.value: e.value.value for e in body.plain.entries}, frame["entries"])
    same("count", body.plain.count.value, len(frame["entries"]))


def check_index(body, frame, _):
    same("frames", [[f.kind_id.value, f.len.value] for f in body.frames], frame["frames"])
    same("frame_count", body.frame_count.value, len(frame["frames"]))
    same("updates", len(body.updates), sum(kind == 2 for kind, _ in frame["frames"]))
    for update, met in zip(body.updates, frame["met"]):
        got = (update.step.value, update.sender.value, update.len_head.value, update.head_crc,
               [(b.tensor.value, b.tensor_count.value, b.len.value, b.crc) for b in update.blocks])
        same("update", got, met)


def check_end(body, frame, _):
    same("frame_count", body.frame_count, frame["frame_count"])
    same("index_offset", body.ofs_index, frame["index_offset"])


CHECKS = {"manifest": check_manifest, "update": check_update, "index_set": check_index_set, "model": check_model,
          "metadata": check_metadata, "index": check_index, "end": check_end}


def check_vector(vector):
    data = bytes.fromhex(vector["hex"])
    reader = decoder.Decoder(data, vector.get("limits"))
    reader.stream()
    stream = parse(data)
    check_places(stream, data)
    frames, at, met_updates = [f for s in stream.segments for f in s.frames], 16, iter(reader.met_updates)
    same("frames", len(frames), len(vector["expected"]["frames"]))
    starts = [place["start"] for s in stream.segments for place in s._debug["frames"]["arr"]]
    for frame, start, want, (kind, length) in zip(frames, starts, vector["expected"]["frames"], reader.met):
        same("frame's offset", start, at)
        same("frame's length", 24 + frame.header.len_body, length)
        got = frame.header.kind
        same("frame's kind", getattr(got, "value", got), kind)
        at += length
        if want["kind"] == "skipped":
            same("skipped kind", got, want["id"])
            continue
        same("frame's kind", name_of(got), want["kind"])
        met = None
        if want["kind"] == "update":
            met = next(met_updates)
            same("last", bool(frame.header.flags & 1), want["last"])
            want = {**want, "reduction_name": ("none", "sum", "mean")[want["reduction"]]}
        if want["kind"] == "index":
            want = {**want, "met": reader.met_updates}
        CHECKS[want["kind"]](frame.body, want, met)
    same("length", at, len(data))


def check_enums():
    """Checks that the enums of the description have exactly the ids of registry.toml.

    Returns the number of ids.
    """
    with open(os.path.join(SPEC, "registry.toml"), "rb") as f:
        registry = tomllib.load(f)
    enums = {"frame": Gcodec.FrameKind, "attribute": Gcodec.AttributeKind, "support": Gcodec.SupportKind,
             "values": Gcodec.ValuesKind, "coding": Gcodec.Coding, "dtype": Gcodec.Dtype, "scale": Gcodec.Scale,
             "minifloat": Gcodec.MinifloatFormat}
    same("tables", set(enums), set(registry) - {"format"})
    for table, enum in enums.items():
        got = {member.value: member.name.removesuffix("_") for member in enum}
        same(table, got, {entry["id"]: entry["name"].replace("-", "_") for entry in registry[table]})
    return sum(len(list(enum)) for enum in enums.values())


def check_vectors():
    with open(os.path.join(SPEC, "vectors", "index.json"), encoding="utf-8") as f:
        vectors = json.load(f)["vectors"]
    counts, failed = {"valid": 0, "invalid": 0}, 0
    refused = 0
    for vector in vectors:
        try:
            if vector["result"] == "valid":
                check_vector(vector)
            else:
                try:
                    parse(bytes.fromhex(vector["hex"]))
                    if vector["error"]["kind"] in SEEN:
                        raise AssertionError(f"accepted, expected {vector['error']['kind']}")
                except REFUSALS:
                    refused += 1
            counts[vector["result"]] += 1
        except Exception as e:  # a crash of the generated code fails this vector only
            failed += 1
            print(f"FAIL {vector['id']}: {type(e).__name__}: {e}")
    print(f"gcodec.ksy: {counts['valid']} valid vectors parsed, every byte in a field, every field as expected; "
          f"{refused} of {counts['invalid']} invalid vectors refused; {failed} failed")
    return failed


def check_magic():
    """Checks how file(1) describes streams, and a text that is not a stream."""
    if shutil.which("file") is None:
        print("SKIPPED: gcodec.magic: file(1) is not installed (apt-get install file)")
        return
    preamble = bytes.fromhex("894743550d0a1a0a010000004e33b45b")
    later = preamble[:9] + b"\x07" + preamble[10:]
    text = preamble.replace(b"\r\n", b"\n")
    with tempfile.TemporaryDirectory() as folder:
        for name, data, want in [("plain", preamble, "gcodec stream of model updates, version 1.0"),
                                 ("later", later, "gcodec stream of model updates, version 1.7"), ("text", text, None)]:
            path = os.path.join(folder, name)
            with open(path, "wb") as f:
                f.write(data)

            def ask(*options):
                magic = os.path.join(SPEC, "gcodec.magic")
                command = ["file", "-m", magic, "-b", *options, path]
                return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
            if want is None:
                assert "gcodec" not in ask() + ask("--mime-type"), ask()
                continue
            same("file", ask(), want)
            same("file --mime-type", ask("--mime-type"), "application/vnd.gcodec")
            same("file --extension", ask("--extension"), "gcu")
    version = subprocess.run(["file", "--version"], capture_output=True, text=True).stdout
    print(f"gcodec.magic: all answers as expected, by {re.sub(chr(10) + '.*', '', version, flags=re.S)}")


def main():
    print(f"gcodec.ksy: {check_enums()} ids match registry.toml")
    check_tables()
    failed = check_vectors()
    check_magic()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
