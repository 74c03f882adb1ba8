"""Writes a synthetic history in the form of `penstock tune export FILE.csv`, for tests of the training alone.

    python3 synthetic.py HISTORY.csv --rows 3000 --seed 20

Every row has `synthetic` set. The rate of a path falls with load, stalls of storage and other transfers; its noise is
15 %.
"""

import argparse
import csv
import math
import random
from pathlib import Path

COLUMNS = [
    "id",
    "started_unix_seconds",
    "source",
    "destination",
    "direction",
    "protocol",
    "protection",
    "engine",
    "announced_bytes",
    "resumed_bytes",
    "files",
    "block_bytes",
    "streams",
    "readers",
    "writers",
    "rate_limit_bps",
    "rtt_us",
    "other_transfers",
    "other_streams",
    "load_1min",
    "processors",
    "cpu_pressure_percent",
    "io_pressure_percent",
    "dirty_bytes",
    "seconds",
    "moved_bytes",
    "failed",
    "bound_by",
    "verdict",
    "retransmits",
    "synthetic",
]

#: Destination, capacity in bit/s, rate of one stream in bit/s, round-trip time in microseconds.
PATHS = [
    ("198.51.100.1", 9e9, 2e9, 900),
    ("198.51.100.2", 4e9, 3e8, 20_000),
    ("198.51.100.3", 8e9, 1e8, 90_000),
    ("198.51.100.4", 1e9, 9e8, 3_000),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=20)
    args = parser.parse_args()
    write(args.file, args.rows, args.seed)


def write(path: Path, count: int, seed: int) -> None:
    draw = random.Random(seed)
    started = 1_767_225_600.0
    with path.open("w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS)
        rows.writeheader()
        for number in range(1, count + 1):
            started += draw.expovariate(1 / 600)
            rows.writerow(transfer(draw, number, started))


def transfer(draw: random.Random, number: int, started: float) -> dict:
    host, capacity, per_stream, rtt_us = draw.choice(PATHS)
    size, files = int(10 ** draw.uniform(6, 11)), int(10 ** draw.uniform(0, 4))
    streams, others = draw.choice([2, 4, 8, 16]), draw.choice([0, 0, 0, 1, 2, 4])
    load, stalls = draw.lognormvariate(0.5, 1), min(100.0, draw.lognormvariate(0, 1.5))
    rate = min(streams * per_stream, capacity) / (1 + others)
    rate *= 1 / (1 + max(0, load - 4) / 8) * (1 - stalls / 150)
    seconds = (4 * rtt_us / 1e6 + files * 2e-4 + size * 8 / rate) * draw.lognormvariate(0, 0.15)
    failed = draw.random() < 0.02
    known = draw.random() < 0.9
    return {
        "id": number,
        "started_unix_seconds": f"{started:.3f}",
        "source": "dtn1",
        "destination": host,
        "direction": "send",
        "protocol": "penstock",
        "protection": draw.choice(["tls", "integrity"]),
        "engine": "io_uring",
        "announced_bytes": size,
        "resumed_bytes": 0,
        "files": files,
        "block_bytes": 4 << 20,
        "streams": streams,
        "readers": draw.choice([1, 2, 4]),
        "writers": 0,
        "rate_limit_bps": "",
        "rtt_us": rtt_us if known else "",
        "other_transfers": others,
        "other_streams": others * 4,
        "load_1min": f"{load:.2f}",
        "processors": 16,
        "cpu_pressure_percent": f"{min(100.0, load * 3):.2f}" if known else "",
        "io_pressure_percent": f"{stalls:.2f}" if known else "",
        "dirty_bytes": int(stalls * 1e7),
        "seconds": f"{seconds:.6f}",
        "moved_bytes": size // 2 if failed else size,
        "failed": int(failed),
        "bound_by": "network",
        "verdict": "failed" if failed else "done",
        "retransmits": int(math.sqrt(size) / 1e3),
        "synthetic": "true",
    }


if __name__ == "__main__":
    main()
