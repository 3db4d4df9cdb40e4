"""Tables that `gcodec inspect --parquet` writes, read by DuckDB."""

from __future__ import annotations

import csv
import json
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb

NAMES = ["plain", 'quo"te, \u00e4', "line\nbreak", "empty", "nan"]
READ: dict[str, Any] = {"VARCHAR": str, "UBIGINT": int, "DOUBLE": float, "BOOLEAN": lambda cell: cell == "true"}


def write(path: Path, tensors: Iterable[tuple[str, list[float]]]) -> None:
    """Writes tensors of f32 as safetensors."""
    header: dict[str, Any] = {}
    data = b""
    for name, values in tensors:
        end = len(data) + 4 * len(values)
        header[name] = {"dtype": "F32", "shape": [len(values)], "data_offsets": [len(data), end]}
        data += struct.pack(f"<{len(values)}f", *values)
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)


def both(command: str, folder: Path, *arguments: Any) -> tuple[list[Any], list[Any]]:
    """Returns the rows of a table as DuckDB reads them, and those of the CSV with the table's types."""
    out = folder / "table.parquet"
    subprocess.run([command, "inspect", *arguments, "--parquet", out, "-q"], check=True)
    table = duckdb.sql(f"SELECT * FROM '{out}'")
    text = subprocess.check_output([command, "inspect", *arguments, "--csv"], text=True)
    names, *lines = csv.reader(text.splitlines(keepends=True))
    assert names == table.columns
    kinds = [READ[str(kind)] for kind in table.types]

    def cell(name: str, kind: Any, text: str) -> Any:
        # A label may be empty; the reason of an opaque tensor is there or not.
        return kind(text) if text or (kind is str and name != "opaque") else None

    return table.fetchall(), [tuple(map(cell, names, kinds, line)) for line in lines]


def test_tables_are_those_of_the_csv(command: str, tmp_path: Path) -> None:
    values = [[1.0, -2.5], [0.0], [3.0] * 9, [], [float("nan"), 1.0, float("inf")]]
    file, other = tmp_path / "named_step7_rank3.safetensors", tmp_path / "other.safetensors"
    write(file, zip(NAMES, values, strict=True))
    write(other, [("w", [2.0] * 5)])
    for options in ["", "--tensors", "--group 1", "--tensors --sort norm --top 3"]:
        rows, expected = both(command, tmp_path, file, other, *options.split())
        assert rows and rows == expected, options
    rows, _ = both(command, tmp_path, file, other, "--tensors")
    assert [row[3] for row in rows] == [*NAMES, "w"]
    assert [row[1:3] for row in rows] == [(7, 3)] * 5 + [(None, None)]
    assert [row[-3] for row in rows] == [None] * 4 + [0, None]  # first_nan


def test_tables_have_several_row_groups(command: str, tmp_path: Path) -> None:
    file = tmp_path / "many.safetensors"
    write(file, [(f"layers.{i}", [float(i)]) for i in range(70_000)])
    rows, expected = both(command, tmp_path, file, "--tensors")
    assert len(rows) == 70_000 and rows == expected
