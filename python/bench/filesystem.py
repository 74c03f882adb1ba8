"""Speed of `penstock://` beside fsspec's `http` and local file systems, in one run on this machine.

    PENSTOCK_BINARY=target/release/penstock python python/bench/filesystem.py [--rounds N] [--out FILE.md]

The agent exports a directory; its gateway serves the same files to `penstock` and `http` over loopback. Contestants
take turns in each round; the table has medians and the range. Files are in the page cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import fsspec

import daemons
from penstock.fsspec import PenstockFileSystem

LARGE_BYTES = 512 << 20
SMALL_FILES = 1000
SMALL_BYTES = 4096
RANGES = 1000
RANGE_BYTES = 64 << 10

Contestant = tuple[Any, str]


def contestants(daemon: daemons.Daemon) -> dict[str, Contestant]:
    """Returns file systems with the path of the bench's directory in each."""
    known: dict[str, Any] = {"token": daemon.token, "fingerprint": daemon.fingerprint, "mover": "never"}
    header = {"Authorization": f"Bearer {daemon.token}"}
    http = fsspec.filesystem("http", client_kwargs={"headers": header}, use_listings_cache=False)
    mover = {**known, "mover": "always"}
    return {
        "local": (fsspec.filesystem("file"), str(daemon.directory / "data")),
        "penstock": (PenstockFileSystem(daemon.listen, gateway=daemon.webdav("http"), **known), "/data"),
        "http": (http, daemon.webdav("http") + "/data"),
        "penstock, TLS": (PenstockFileSystem(daemon.listen, gateway=daemon.webdav("https"), **known), "/data"),
        "penstock cp": (PenstockFileSystem(daemon.listen, gateway=daemon.webdav("http"), **mover), "/data"),
    }


def read_whole(fs: Any, root: str, _scratch: Path) -> int:
    return len(fs.cat_file(f"{root}/large"))


def read_in_order(fs: Any, root: str, _scratch: Path) -> int:
    total = 0
    with fs.open(f"{root}/large", "rb") as file:
        while part := file.read(1 << 20):
            total += len(part)
    return total


def read_ranges(fs: Any, root: str, _scratch: Path) -> int:
    step = (LARGE_BYTES - RANGE_BYTES) // RANGES
    starts = [(index * 7919 % RANGES) * step for index in range(RANGES)]
    ends = [start + RANGE_BYTES for start in starts]
    return sum(len(part) for part in fs.cat_ranges([f"{root}/large"] * RANGES, starts, ends, on_error="raise"))


def read_small(fs: Any, root: str, _scratch: Path) -> int:
    found = fs.cat([f"{root}/small/{index}" for index in range(SMALL_FILES)])
    return sum(len(part) for part in found.values())


def fetch_file(fs: Any, root: str, scratch: Path) -> int:
    fs.get_file(f"{root}/large", str(scratch / "fetched"))
    size = (scratch / "fetched").stat().st_size
    (scratch / "fetched").unlink()
    return size


def store_file(fs: Any, root: str, scratch: Path) -> int:
    fs.put_file(str(scratch / "source"), f"{root}/stored")
    return LARGE_BYTES


def write_in_order(fs: Any, root: str, _scratch: Path) -> int:
    part = b"0123456789abcdef" * 65536
    with fs.open(f"{root}/written", "wb") as file:
        for _ in range(LARGE_BYTES // len(part)):
            file.write(part)
    return LARGE_BYTES


WORK: dict[str, tuple[Callable[[Any, str, Path], int], set[str]]] = {
    "read 512 MiB at once": (read_whole, {"local", "penstock", "http", "penstock, TLS"}),
    "read 512 MiB in order, 1 MiB each": (read_in_order, {"local", "penstock", "http", "penstock, TLS"}),
    "read 1,000 ranges of 64 KiB": (read_ranges, {"local", "penstock", "http", "penstock, TLS"}),
    "read 1,000 files of 4 KiB": (read_small, {"local", "penstock", "http", "penstock, TLS"}),
    "fetch a file of 512 MiB": (fetch_file, {"local", "penstock", "http", "penstock, TLS", "penstock cp"}),
    # `http` puts no file in one piece, and the gateway takes no form.
    "store a file of 512 MiB": (store_file, {"local", "penstock", "penstock, TLS", "penstock cp"}),
    "write 512 MiB in order, 1 MiB each": (write_in_order, {"local", "penstock", "penstock, TLS"}),
}


def measure(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Returns rates in MB/s by work and contestant."""
    results: dict[str, dict[str, list[float]]] = {work: {} for work in WORK}
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        daemon = daemons.agent(Path(name) / "dtn")
        scratch = Path(name)
        try:
            data = daemon.directory / "data"
            block = os.urandom(1 << 20)
            for path in (data / "large", scratch / "source"):
                with path.open("wb") as file:
                    for _ in range(LARGE_BYTES >> 20):
                        file.write(block)
            (data / "small").mkdir()
            for index in range(SMALL_FILES):
                (data / "small" / str(index)).write_bytes(block[:SMALL_BYTES])
            found = contestants(daemon)
            for _round in range(rounds):
                for work, (function, names) in WORK.items():
                    for contestant, (fs, root) in found.items():
                        if contestant not in names:
                            continue
                        began = time.perf_counter()
                        moved = function(fs, root, scratch)
                        seconds = time.perf_counter() - began
                        results[work].setdefault(contestant, []).append(moved / seconds / 1e6)
        finally:
            daemon.stop()
    return results


def table(results: dict[str, dict[str, list[float]]]) -> str:
    """Returns the results as Markdown."""
    names = ["local", "penstock", "http", "penstock, TLS", "penstock cp"]
    lines = ["| MB/s | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for work, rates in results.items():
        cells = []
        for name in names:
            values = rates.get(name)
            if not values:
                cells.append("-")
                continue
            digits = 0 if statistics.median(values) >= 10 else 1
            low, middle, high = min(values), statistics.median(values), max(values)
            cells.append(f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})")
        lines.append(f"| {work} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    text = table(measure(given.rounds))
    print(text)
    if given.out is not None:
        given.out.write_text(text)


if __name__ == "__main__":
    main()
