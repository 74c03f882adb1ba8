"""Competing traffic that comes and goes: connections to the target, over the same router.

    python3 background.py sink
    python3 background.py CONNECTIONS CONGESTION ON_SECONDS OFF_SECONDS

The senders begin when the file `begun` of the lab is there, with a time of traffic.
"""

import os
import socket
import sys
import threading
import time
from pathlib import Path

LAB = Path(os.environ["PENSTOCK_LAB"])
PORT = 7000
PART = os.urandom(16384)


def drain(connection):
    while connection.recv(1 << 16):
        pass


def sink():
    server = socket.create_server(("::", PORT), family=socket.AF_INET6, backlog=128)
    print("the sink is ready", flush=True)
    while True:
        threading.Thread(target=drain, args=(server.accept()[0],), daemon=True).start()


def send(congestion, end):
    with socket.create_connection(("target-eth0", PORT)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        connection.settimeout(1.0)
        while time.monotonic() < end:
            try:
                connection.send(PART)
            except TimeoutError:
                continue


def main():
    if sys.argv[1] == "sink":
        sink()
    connections, congestion, on, off = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
    print("the background is ready", flush=True)
    while not (LAB / "begun").exists():
        time.sleep(0.1)
    while True:
        end = time.monotonic() + on
        threads = [threading.Thread(target=send, args=(congestion, end)) for _ in range(connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(max(0.0, end - time.monotonic()) + off)


main()
