"""Daemons on this machine for the notebooks, in a temporary directory that is removed at the end.

With hosts of your own skip the cells that use it: `Agent("dtn1.example.org")` and the like find them by your logins.
"""

from __future__ import annotations

import atexit
import os
import socket
import struct
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import daemons

_DIRECTORY = tempfile.TemporaryDirectory(prefix="penstock-notebook-")
HERE = Path(_DIRECTORY.name)

#: Token of a user who may submit requests to the controller.
USER_TOKEN = daemons.CLIENT_TOKEN

os.environ["PENSTOCK_BINARY"] = str(daemons.binary())
os.environ["PENSTOCK_STATE"] = str(HERE / "client")
(HERE / "client").mkdir(mode=0o700)


def _until_exit(daemon: Any) -> Any:
    atexit.register(daemon.stop)
    return daemon


def agent(name: str = "dtn1") -> daemons.Daemon:
    """Starts an agent with a gateway, and logs in as `penstock login` does."""
    daemon = _until_exit(daemons.agent(HERE / name))
    words = ["login", daemon.listen, "--token", daemon.token, "--fingerprint", daemon.fingerprint]
    daemons.run(HERE / "client", *words)
    return daemon


def site(extra: str = "") -> daemons.Site:
    """Starts a controller with the sites `a` and `b`."""
    found = _until_exit(daemons.site(HERE / "site", extra))
    os.environ["PENSTOCK_CONTROLLER"] = found.url
    return found


def listener() -> str:
    """Starts the listener of network tests; returns its address."""
    import json
    import subprocess

    words = [daemons.binary(), "nettest", "--listen", "127.0.0.1:0", "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, env=daemons.environment(HERE / "client"), text=True)
    atexit.register(process.kill)
    assert process.stdout is not None
    return str(json.loads(process.stdout.readline())["listening"])


def files(directory: Path, count: int, size: int) -> None:
    """Writes files of random bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        (directory / f"f{index:04}").write_bytes(os.urandom(size))


COLLECTOR = """
[collector]
sflow = ["127.0.0.1:0"]
ipfix = []
fireflies = []
marking = ["2001:db8:a::/48", "2001:db8:b::/48"]
[[collector.site]]
name = "a"
networks = ["2001:db8:a::/48"]
[[collector.site]]
name = "b"
networks = ["2001:db8:b::/48"]
"""


def collector() -> daemons.Daemon:
    """Starts a collector that receives samples of three owners' traffic, made up, from one switch."""
    directory = HERE / "collector"
    directory.mkdir()
    daemon = _until_exit(daemons.Daemon(directory, config=COLLECTOR, roles="collector").start())
    address = next(one for one in daemon.facts["telemetry"]["sflow"])
    host, _, port = address.rpartition(":")
    stop = threading.Event()
    thread = threading.Thread(target=_sample, args=((host.strip("[]"), int(port)), stop), daemon=True)
    thread.start()
    atexit.register(stop.set)
    return daemon


#: Owner, activity and samples a second: cms analysis, atlas production, and traffic without a label.
TRAFFIC = ((3, 14, 40), (2, 17, 25), (0, 0, 10))


def _sample(address: tuple[str, int], stop: threading.Event) -> None:
    """Sends sFlow datagrams, ten a second."""
    number = 0
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        while not stop.wait(0.1):
            number += 1
            samples = [
                _flow_sample(number * 100 + index, _packet(owner, activity))
                for index, (owner, activity, rate) in enumerate(TRAFFIC)
                for _ in range(max(1, rate // 10))
            ]
            head = struct.pack("!II4sIIII", 5, 1, bytes([192, 0, 2, 1]), 0, number, number * 100, len(samples))
            sender.sendto(head + b"".join(samples), address)


def _packet(owner: int, activity: int) -> bytes:
    """Returns the head of an IPv6 packet of 1,500 bytes whose flow label has owner and activity."""
    reversed_owner = int(f"{owner:09b}"[::-1], 2)
    label = reversed_owner << 9 | activity << 2
    source = socket.inet_pton(socket.AF_INET6, f"2001:db8:a::{owner + 1:x}")
    destination = socket.inet_pton(socket.AF_INET6, "2001:db8:b::1")
    ethernet = bytes(12) + b"\x86\xdd"
    network = struct.pack("!IHBB", 6 << 28 | label, 1460, 6, 64) + source + destination
    return ethernet + network + struct.pack("!HHIIBBHHH", 40_000 + owner, 8620, 0, 0, 5 << 4, 16, 1000, 0, 0)


def _flow_sample(number: int, packet: bytes) -> bytes:
    """Returns a flow sample with a raw packet header, of one packet in 1,000."""
    padded = packet + bytes(-len(packet) % 4)
    record = struct.pack("!IIII", 1, 1514, 4, len(packet)) + padded
    flow = struct.pack("!II", 1, len(record)) + record
    body = struct.pack("!IIIIIIII", number, 17, 1000, number * 1000, 0, 17, 18, 1) + flow
    return struct.pack("!II", 1, len(body)) + body
