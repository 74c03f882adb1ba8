"""Copies files for some seconds, and prints what arrived meanwhile.

    python3 copy_for.py PENSTOCK auto|off|falcon|STREAMS[/READERS] SECONDS COUNTxBYTES[,COUNTxBYTES...] READ_MBPS CONGESTION

With a READ_MBPS other than 0 each read in flight has this rate, of files in one folder. CONGESTION is cubic or another
congestion control of the copy, or "-" for that of the machine.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

LAB = Path(os.environ["PENSTOCK_LAB"])
ENVIRONMENT = {**os.environ, "PENSTOCK_STATE": str(LAB / "shared")}
PENSTOCK = sys.argv[1]
# The probe of Falcon's mover (arif-zaman/falcon-datamover) is 5 s, the first second of which does not count.
FALCON_PROBE_S = 5.0
FALCON_SETTLE_S = 1.0
FALCON_BASE = 1.02
FALCON_LOSS_WEIGHT = 10.0
SEGMENT_BITS = 1448 * 8


def penstock(*words):
    command = [PENSTOCK, *map(str, words)]
    return subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def rate_bps(moved, begin, end):
    """Mean rate between two times, of pairs of a time and the bytes that have moved."""
    inside = [point for point in moved if begin <= point[0] <= end] or [moved[-1]]
    (first, before), (last, after) = inside[0], inside[-1]
    return (after - before) * 8 / max(last - first, 1e-3)


class Falcon:
    """Gradient search of Falcon with one probe a step: utility T / 1.02^n less ten times the lost share of T."""

    def __init__(self, streams):
        self.streams, self.before, self.run = streams, None, 0
        self.due = time.time() + FALCON_PROBE_S
        self.retransmits = 0

    def step(self, shown, moved, copy):
        now = time.time()
        if now < self.due:
            return
        rate = rate_bps(moved, now - FALCON_PROBE_S + FALCON_SETTLE_S, now)
        lost, self.retransmits = shown["retransmits"] - self.retransmits, shown["retransmits"]
        share = lost * SEGMENT_BITS / max(rate * FALCON_PROBE_S, 1.0)
        utility = rate / FALCON_BASE**self.streams - FALCON_LOSS_WEIGHT * min(share, 1.0) * rate
        last, self.before = self.before, (self.streams, utility)
        if last is None or last[0] == self.streams:
            wanted = self.streams + 1
        else:
            gradient = (utility - last[1]) / (self.streams - last[0])
            sign = 1 if gradient > 0 else -1
            self.run = self.run + sign if self.run * sign > 0 else sign
            size = -(-self.streams * abs(gradient / max(abs(last[1]), 1.0)) // 1)
            wanted = self.streams + self.run * int(max(size, 1))
        self.streams = min(max(wanted, 2), 64)
        penstock("transfers", "set", copy, "--streams", self.streams)
        self.due = time.time() + FALCON_PROBE_S


def write_files(source, sets):
    """Writes files of these counts and sizes into directories of a thousand; their content differs, so that nothing is sparse."""
    part = os.urandom(10_000_000)
    for group, (count, size) in enumerate(sets):
        for number in range(count):
            folder = source / f"{group}-{number // 1000}"
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / str(number), "wb") as out:
                for begin in range(0, size, len(part)):
                    at = (number * size) % (len(part) // 2) if size < len(part) // 2 else 0
                    out.write(part[at : at + size - begin])


def slow_reads(folder, read_mbps):
    """Mounts the folder with a rate for each read; returns the server and the mountpoint."""
    mountpoint = LAB / "slow"
    mountpoint.mkdir(exist_ok=True)
    script = Path(__file__).with_name("slow_files.py")
    server = subprocess.Popen(["python3", script, folder, mountpoint, read_mbps], stdout=subprocess.PIPE, text=True)
    if server.stdout.readline() != "is ready\n":
        sys.exit("slow_files.py did not start")
    return server, mountpoint


def mean_of_last_half(values):
    later = values[len(values) // 2 :]
    return sum(later) / max(len(later), 1)


def main():
    mode, seconds = sys.argv[2], float(sys.argv[3])
    sets = [tuple(map(int, one.split("x"))) for one in sys.argv[4].split(",")]
    source = LAB / "in"
    write_files(source, sets)
    read_mbps, congestion, slow = sys.argv[5], sys.argv[6], None
    if float(read_mbps) > 0:
        (folder,) = source.iterdir()
        slow, mountpoint = slow_reads(folder, read_mbps)
    options = ["--block", "64KiB", "--memory", "64MiB", "--engine", "buffered", "--protect", "integrity", "--recursive"]
    streams, _, readers = mode.partition("/")
    options += {"auto": [], "off": ["--tune", "off"], "falcon": ["--tune", "off"]}.get(mode, ["--streams", streams])
    options += ["--readers", readers] if readers else []
    options += [] if congestion == "-" else ["--congestion", congestion]
    command = [PENSTOCK, "cp", "--json", *options, str(mountpoint if slow else source), "penstock://[target-eth0]:8620/"]
    output = LAB / "copy.json"
    copy = subprocess.Popen(command, env=ENVIRONMENT, stdout=output.open("w"), stderr=subprocess.DEVNULL)
    (LAB / "begun").touch()
    name, begun, streams, readers, falcon = f"cp{copy.pid}", time.time(), [], [], None
    moved = [(begun, 0)]
    while time.time() - begun < seconds and copy.poll() is None:
        time.sleep(0.5)
        shown = penstock("transfers", "show", name, "--json")
        if shown.returncode != 0:
            continue
        shown = json.loads(shown.stdout)
        moved.append((time.time(), shown["moved_bytes"]))
        streams.append(shown["streams"])
        readers.append(shown["readers"])
        if mode == "falcon":
            falcon = falcon or Falcon(max(shown["streams"], 2))
            falcon.step(shown, moved, name)
    end = time.time()
    if copy.poll() is None:
        penstock("transfers", "cancel", name)
    copy.wait()
    result = json.loads(output.read_text())
    moved.append((end, max(result["moved_bytes"], moved[-1][1])))
    if slow:
        subprocess.run(["umount", "-l", mountpoint], check=True)
        slow.wait()
    decisions = (result.get("tuning") or {}).get("decisions") or []
    print(json.dumps({
        "seconds": result["seconds"],
        "files": result["files"],
        "megabits_per_second": rate_bps(moved, begun, end) / 1e6,
        "steady_megabits_per_second": rate_bps(moved, begun + (end - begun) / 2, end) / 1e6,
        "streams": mean_of_last_half(streams),
        "readers": mean_of_last_half(readers),
        "retransmits": result["retransmits"],
        "decisions": [f"{one['seconds']:.1f} s: {one['reason']}" for one in decisions],
    }))
    shutil.rmtree(source)


main()
