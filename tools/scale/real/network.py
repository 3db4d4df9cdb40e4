"""Machines of one host: network namespaces whose links have a rate and a latency. Linux, as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PREFIX = "gcodec-scale"
HUB = f"{PREFIX}-hub"
# Every kernel has it, and a namespace may choose it. Others, such as bbr, send less than the link carries
# while messages are short.
CONTROL = "reno"
# Milliseconds of its rate that a link sends at once after it was idle, at least two frames.
BURST_MS = 5
# Milliseconds of its rate that a connection leaves waiting for its link, at least 8 KiB. Without a bound, the
# bytes of a message wait for longer than TCP's timeout and are sent twice, and the other direction's
# acknowledgements wait behind them.
WAITING_MS = 5
# Bytes that wait for a link. No packet is lost, as the buffers of all connections together are smaller.
QUEUE = 256 << 20


def problem() -> str | None:
    """Returns why this machine cannot make the networks, or None."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"the command {tool} of iproute2 is missing"
    name = f"{PREFIX}-try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode != 0:
        return f"the kernel makes no network namespaces: {tried.stderr.strip()}"
    try:
        shaped = subprocess.run(["tc", "-n", name, *_shape("lo", 10)], capture_output=True, text=True)
        return None if shaped.returncode == 0 else f"the kernel has no token buckets (tbf): {shaped.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def name(machine: int) -> str:
    """Returns the namespace of a machine."""
    return f"{PREFIX}-{machine}"


def address(machine: int) -> str:
    """Returns the address of a machine."""
    return f"10.77.0.{machine + 1}"


def _shape(device: str, mbit: float) -> list[str]:
    burst = max(int(mbit * 1e6 / 8 * BURST_MS / 1e3), 2 * 1514)
    return ["qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{mbit}mbit", "burst", str(burst), "limit", str(QUEUE)]


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


class Network:
    """Machines with one link each, `eth0`, to a hub: a bridge, or with a latency a relay that delays frames.

    A token bucket limits each direction of a link at the end that sends. tc's `netem` could delay too, but
    many kernels lack it.
    """

    def __init__(self, machines: int) -> None:
        self._machines = machines
        self._relay: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Network:
        self.remove()
        _run("ip", "netns", "add", HUB)
        _run("ip", "-n", HUB, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", HUB, "link", "set", "bridge", "up")
        for machine in range(self._machines):
            self._add(machine)
        return self

    def _add(self, machine: int) -> None:
        here, port = name(machine), f"port{machine}"
        _run("ip", "netns", "add", here)
        _run("ip", "-n", HUB, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", here)
        _run("ip", "-n", here, "link", "set", "eth0", "address", f"02:00:00:00:00:{machine + 1:02x}")
        _run("ip", "-n", HUB, "link", "set", port, "master", "bridge", "up")
        _run("ip", "-n", here, "address", "add", f"{address(machine)}/24", "dev", "eth0")
        _run("ip", "-n", here, "link", "set", "eth0", "up")
        _run("ip", "-n", here, "link", "set", "lo", "up")
        # Windows of the largest product of rate and latency, kept open between the steps of a training.
        settings = {"tcp_congestion_control": CONTROL, "tcp_slow_start_after_idle": "0", "tcp_rmem": "4096 4194304 33554432", "tcp_wmem": "4096 4194304 33554432"}
        self._set(here, settings)

    def _set(self, namespace: str, settings: dict[str, str]) -> None:
        """Sets numbers of TCP in a namespace."""
        for key, value in settings.items():
            script = f"echo '{value}' > /proc/sys/net/ipv4/{key}"
            _run("ip", "netns", "exec", namespace, "sh", "-c", script)

    def shape(self, mbit: float, milliseconds: float) -> None:
        """Gives each link a rate in each direction, and a latency from one machine to another."""
        self._stop_relay()
        for machine in range(self._machines):
            waiting = max(int(mbit * 1e6 / 8 * WAITING_MS / 1e3), 8 << 10)
            self._set(name(machine), {"tcp_limit_output_bytes": str(waiting)})
            _run("tc", "-n", name(machine), *_shape("eth0", mbit))
            _run("tc", "-n", HUB, *_shape(f"port{machine}", mbit))
            master = ["master", "bridge"] if milliseconds == 0 else ["nomaster"]
            _run("ip", "-n", HUB, "link", "set", f"port{machine}", *master)
        if milliseconds > 0:
            relay = [sys.executable, str(Path(__file__).with_name("relay.py")), str(self._machines), str(milliseconds)]
            self._relay = subprocess.Popen(["ip", "netns", "exec", HUB, *relay], stdout=subprocess.PIPE)
            # It says when it listens.
            assert self._relay.stdout is not None
            if not self._relay.stdout.readline():
                raise RuntimeError("the relay did not start")

    def _stop_relay(self) -> None:
        if self._relay is not None:
            self._relay.terminate()
            self._relay.wait()
            self._relay = None

    def remove(self) -> None:
        """Removes the namespaces, also those of a run that was killed."""
        self._stop_relay()
        there = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        for line in there.splitlines():
            if (found := line.split()[0]).startswith(PREFIX):
                _run("ip", "netns", "delete", found)

    def __exit__(self, *_: object) -> None:
        self.remove()
