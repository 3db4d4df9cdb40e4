"""The command `gcodec`, as `python -m gcodec` and as the script that the package installs.

The native module has the whole program, so its output and exit codes are those of the binary.
"""

import sys

from gcodec import _native


def main() -> int:
    """Runs the command line of this process, and returns its exit code."""
    # `python -m` gives the path of this file as the first word, which usage texts would show.
    return _native.command(["gcodec", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
