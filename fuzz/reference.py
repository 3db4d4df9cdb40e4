"""The reference decoder as a service of the fuzz target `reference`.

It reads streams from standard input and writes answers to standard output. Each message is four bytes of
length, little-endian, and this many bytes. The first message has the limits, as JSON. An answer is JSON:
`stream` and, if there is an update, `tensors`. Each has the decoder's result, or `error` and `offset`.
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
    except Exception:  # a crash of the decoder is a finding; the service goes on
        return {"crash": traceback.format_exc()}


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
