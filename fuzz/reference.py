"""The reference decoder as a service of the fuzz target `reference`: streams come in by standard input and what it makes of
them goes out by standard output, each as four bytes of length, little-endian, and so many bytes.

The limits come first, as JSON. An answer is JSON too: `stream` and, if there is an update, `tensors`; each holds what the
decoder says, or `error` and `offset`.
"""

import json
import os
import sys
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "spec", "reference"))
import decoder  # noqa: E402


def receive():
    length = sys.stdin.buffer.read(4)
    return sys.stdin.buffer.read(int.from_bytes(length, "little")) if len(length) == 4 else None


def send(value):
    data = json.dumps(value).encode()
    sys.stdout.buffer.write(len(data).to_bytes(4, "little") + data)
    sys.stdout.buffer.flush()


def attempt(what):
    try:
        return {"value": what()}
    except decoder.FormatError as e:
        return {"error": e.kind, "offset": e.offset, "what": str(e)}
    except Exception:  # a decoder that falls over is a finding, not the end of the service
        return {"fell_over": traceback.format_exc()}


def main():
    limits = json.loads(receive())
    while (data := receive()) is not None:
        answer = {}
        reader = decoder.Decoder(data, limits)
        answer["stream"] = attempt(reader.stream)
        if "value" in answer["stream"] and reader.updates:
            answer["tensors"] = attempt(lambda: reader.apply(None, None))
        send(answer)


if __name__ == "__main__":
    main()
