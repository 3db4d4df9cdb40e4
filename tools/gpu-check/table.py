"""Makes a page of the lines of a run on stdin: `python3 table.py < log`. `--test` tests this program."""

import datetime
import re
import sys

LINE = re.compile(r"^(?P<what>.+): (?P<number>\d+\.\d+) (?P<unit>ms|GB/s.*)$")


def page(lines, day):
    device, rows, checks, skipped = "no device", [], [], []
    for line in (line.rstrip("\n") for line in lines):
        if line.startswith("device "):
            device = line.removeprefix("device ")
        elif match := LINE.match(line):
            rows.append((match["what"], float(match["number"]), match["unit"]))
        elif line.endswith(": ok") or ": FAILED" in line:
            checks.append(line)
        elif "SKIPPED" in line:
            skipped.append(line)
    failed = [line for line in checks if ": FAILED" in line]
    text = [f"# {device}, {day}", ""]
    text += [f"{len(checks) - len(failed)} of {len(checks)} comparisons and checks are right."]
    text += [f"- {line}" for line in failed + skipped]
    text += ["", "| what | | |", "|---|---|---|"]
    text += [f"| {what} | {number:,.3f} | {unit} |" for what, number, unit in rows]
    times = {what: number for what, number, unit in rows if unit == "ms"}
    copies = [number for what, number, unit in rows if what.startswith("copy of") and unit.startswith("GB/s")]
    lines = []
    for what, number, unit in rows:
        if copies and what.startswith(("select", "quantise", "delta")) and unit.startswith("GB/s"):
            lines.append(f"- {what}: {number / copies[0]:.1%} of the copy bandwidth")
    ours = [ms for what, ms in times.items() if what.startswith("select topk") and "feedback" not in what]
    for what, ms in times.items():
        if ours and what.startswith(("torch.topk", "cupy.")):
            lines.append(f"- {what}: {ms / ours[0]:.1f} times as long as ours")
    one, each = (times.get(f"161 tensors of 4096 f32, {way}") for way in ("one update", "an update each"))
    if one and each:
        lines.append(f"- 161 small tensors: an update each takes {each / one:.1f} times as long as one of all")
    for what, own in times.items():
        if what.startswith("torch to bytes") and what.endswith("the call's own"):
            name = what.removesuffix(", the call's own")
            beyond = times.get(f"{name}, selection beyond kernels and copies")
            lines.append(f"- {name}: {1e3 * own:.0f} us of the call's own")
            if beyond is not None:
                lines.append(f"- with what selection takes beyond kernels and copies: {1e3 * (own + beyond):.0f} us (target: below 50)")
    one, each = (times.get(f"torch, 161 tensors of 4096 f32, {way}") for way in ("one call", "a call each"))
    if one and each:
        lines.append(f"- 161 small tensors in Python: a call each takes {each / one:.1f} times as long as one of all (target: at least 5)")
    return "\n".join(text + ([""] + lines if lines else [])) + "\n"


def test():
    made_up = [
        "device Example",
        "bytes and residuals of topk, f32: ok",
        "bytes and residuals of sbc, f16: FAILED",
        "cupy: SKIPPED, No module named 'cupy'",
        "select topk:density=0.001, 8 f32: 2.000 ms",
        "select topk:density=0.001, 8 f32: 500.0 GB/s of input",
        "quantise natural, 8 f32, on the device: 400.0 GB/s of input",
        "copy of 8 f32: 1000.0 GB/s read and written",
        "torch.topk, 1 of 8 f32: 30.000 ms",
        "161 tensors of 4096 f32, one update: 1.000 ms",
        "161 tensors of 4096 f32, an update each: 7.000 ms",
        "torch to bytes, 100 f32, the call's own: 0.0210 ms",
        "torch to bytes, 100 f32, selection beyond kernels and copies: 0.0170 ms",
        "torch, 161 tensors of 4096 f32, one call: 1.0000 ms",
        "torch, 161 tensors of 4096 f32, a call each: 9.0000 ms",
    ]
    text = page(made_up, "2000-01-01")
    for expected in (
        "# Example, 2000-01-01",
        "1 of 2 comparisons",
        "- bytes and residuals of sbc, f16: FAILED",
        "- cupy: SKIPPED",
        "50.0% of the copy bandwidth",
        "natural, 8 f32, on the device: 40.0% of the copy bandwidth",
        "15.0 times as long as ours",
        "7.0 times as long as one of all",
        "- torch to bytes, 100 f32: 21 us of the call's own",
        "kernels and copies: 38 us",
        "9.0 times as long as one of all",
    ):
        assert expected in text, (expected, text)
    assert page([], "x").startswith("# no device, x")


if "--test" in sys.argv:
    test()
    print("table.py: ok")
else:
    print(page(sys.stdin, datetime.date.today()), end="")
