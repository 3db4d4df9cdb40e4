"""The hub of a network with latency: passes Ethernet frames on after a constant time.

    python relay.py MACHINES MILLISECONDS      # in the hub's namespace; network.py starts it
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections import deque

# Of linux/if_ether.h and linux/if_packet.h; Python has no names for them.
ETH_P_ALL = 3
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
# A header of the kernel for joined segments and open checksums stands before each frame.
HEADER = 10
# Bytes of the largest joined segment with its headers.
FRAME = HEADER + 65_600


def port(machine: int) -> socket.socket:
    """Returns a socket with all frames of a machine's link."""
    one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    one.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    one.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    # SO_RCVBUFFORCE, SO_SNDBUFFORCE: frames in the queue of the link count here.
    for option in (33, 32):
        one.setsockopt(socket.SOL_SOCKET, option, 512 << 20)
    one.bind((f"port{machine}", 0))
    one.setblocking(False)
    return one


def relay(machines: int, seconds: float) -> None:
    """Passes frames on until the process ends."""
    ports = [port(machine) for machine in range(machines)]
    waiting: deque[tuple[float, int, bytes]] = deque()
    print("listening", flush=True)
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, to, frame = waiting.popleft()
            for one in ports if to < 0 else [ports[to]]:
                try:
                    one.send(frame)
                except OSError as e:
                    print(f"relay: a frame is lost: {e}", file=sys.stderr, flush=True)
        left = max(waiting[0][0] - time.monotonic(), 0.0) if waiting else None
        for one in select.select(ports, [], [], left)[0]:
            for _ in range(16):
                try:
                    frame = one.recv(FRAME)
                except BlockingIOError:
                    break
                # Machine n has the address 02:00:00:00:00:n+1. Frames to others go to all.
                to = frame[HEADER + 5] - 1 if frame[HEADER] == 2 else -1
                waiting.append((time.monotonic() + seconds, to if to < machines else -1, frame))


if __name__ == "__main__":
    relay(int(sys.argv[1]), float(sys.argv[2]) / 1e3)
