"""Rows of a history and their features, as `core/forecast/src/features.rs` has them."""

import argparse
import csv
import json
import math
import sys
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

NETWORK, HOST, STORAGE = "network", "host", "storage"

#: Name, unit and group of each feature, in the order of a model's columns.
FEATURES = [
    ("bytes", "B", NETWORK),
    ("files", "count", NETWORK),
    ("mean_file_bytes", "B", NETWORK),
    ("streams", "count", NETWORK),
    ("block_bytes", "B", NETWORK),
    ("encrypted", "0 or 1", NETWORK),
    ("rtt_us", "us", NETWORK),
    ("other_transfers", "count", NETWORK),
    ("other_streams", "count", NETWORK),
    ("pair_last_bps", "bit/s", NETWORK),
    ("pair_median_bps", "bit/s", NETWORK),
    ("hour_utc", "h", NETWORK),
    ("weekday_utc", "number", NETWORK),
    ("load_per_processor", "tasks", HOST),
    ("cpu_pressure_percent", "%", HOST),
    ("io_pressure_percent", "%", STORAGE),
    ("dirty_bytes", "B", STORAGE),
    ("readers", "count", STORAGE),
    ("writers", "count", STORAGE),
]

PAIR_RATES_MAX = 8


@dataclass
class Transfer:
    """A transfer that ended well, with what was known at its start."""

    started: float
    source: str
    destination: str
    seconds: float
    bytes: float
    synthetic: bool
    known: dict[str, float | None]
    #: Settings and size of transfers that repeat each other, for the noise floor.
    settings: tuple = ()
    #: Value of each feature, NaN where it is not known.
    features: dict[str, float] = field(default_factory=dict)

    @property
    def pair(self) -> tuple[str, str]:
        return self.source, self.destination

    @property
    def rate(self) -> float:
        return self.bytes * 8 / self.seconds

    @property
    def end(self) -> float:
        return self.started + self.seconds


class FileError(Exception):
    """A file that is no history."""


def run_reported(program: str, run: Callable[[argparse.Namespace], dict], args: argparse.Namespace) -> int:
    """Runs a training, and writes its report to the file of `--report`; returns the exit code of the program."""
    try:
        report = run(args)
        if args.report:
            args.report.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
    except (OSError, FileError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    return 0


#: Largest number of a row: larger ones do not fit the trees' single precision.
NUMBER_MAX = 1e30


def number(text: str | float | None) -> float | None:
    """A number of at most NUMBER_MAX; None for an empty cell or anything else."""
    try:
        value = float("" if text is None else text)
    except ValueError:
        return None
    return value if abs(value) <= NUMBER_MAX else None


#: Columns that every export has.
EXPORT_COLUMNS = (
    "started_unix_seconds",
    "source",
    "destination",
    "protocol",
    "protection",
    "load_1min",
    "processors",
    "seconds",
    "moved_bytes",
    "bound_by",
    "verdict",
    "synthetic",
)

#: Rates outside of it are no transfer's, in bit/s.
RATE_MIN, RATE_MAX = 1, 1e15


def read_export(path: Path) -> tuple[list[Transfer], dict[str, int]]:
    """Transfers of a file of `penstock tune export FILE.csv`, and counts of the rows that are left out."""
    transfers, left_out = [], defaultdict(int)
    no_export = f"{path}: no file of penstock tune export: make one with penstock tune export FILE.csv"
    try:
        with path.open(newline="") as file:
            rows = csv.DictReader(file, restval="")
            missing = [name for name in EXPORT_COLUMNS if name not in (rows.fieldnames or [])]
            if missing:
                raise FileError(f"{no_export} (column {missing[0]} is missing)")
            for row in rows:
                reason = unusable(row)
                if reason:
                    left_out[reason] += 1
                    continue
                transfers.append(of_export(row))
    except (csv.Error, UnicodeDecodeError) as error:
        raise FileError(f"{no_export} ({error})") from error
    return transfers, dict(left_out)


def unusable(row: dict[str, str]) -> str | None:
    """Reason why a row is not used."""
    if row["verdict"] not in ("done", "partial"):
        return f"verdict {row['verdict']}"
    if row["bound_by"] == "rate limit":
        return "bound by a rate limit"
    if row["protocol"] != "penstock":
        return f"protocol {row['protocol']}"
    if (number(row["moved_bytes"]) or 0) <= 0 or (number(row["seconds"]) or 0) <= 0:
        return "nothing moved"
    if number(row["started_unix_seconds"]) is None:
        return "no time"
    if not RATE_MIN <= float(row["moved_bytes"]) * 8 / float(row["seconds"]) <= RATE_MAX:
        return "rate out of range"
    return None


def of_export(row: dict[str, str]) -> Transfer:
    load, processors = number(row["load_1min"]), number(row["processors"])
    known = {
        name: number(row.get(name))
        for name in (
            "files",
            "streams",
            "block_bytes",
            "rtt_us",
            "other_transfers",
            "other_streams",
            "cpu_pressure_percent",
            "io_pressure_percent",
            "dirty_bytes",
            "readers",
            "writers",
        )
    }
    known["load_per_processor"] = number(load / processors) if load is not None and processors else None
    known["encrypted"] = {"tls": 1.0, "integrity": 0.0}.get(row["protection"])
    moved = float(row["moved_bytes"])
    return Transfer(
        started=float(row["started_unix_seconds"]),
        source=row["source"],
        destination=row["destination"],
        seconds=float(row["seconds"]),
        bytes=moved,
        synthetic=row["synthetic"] == "true",
        known=known,
        settings=(size_class(moved), known["files"], known["streams"], known["block_bytes"]),
    )


def size_class(size: float) -> int:
    """Sizes within a factor of 1.1 are alike."""
    return round(math.log(size) / math.log(1.1))


#: Shorter transfers and rates above the links are left out, as in the published noise floor of these files.
GRIDFTP_SECONDS_MIN, GRIDFTP_RATE_MAX = 10, 9e9


def read_gridftp(path: Path) -> tuple[list[Transfer], dict[str, int]]:
    """Transfers of a CSV file of the GridFTP history that comes with Falcon.

    Sizes are in bytes, rates in Mbit/s, round-trip times in seconds. Files use any line end; cells may be `na`. Their
    times lack the hour in some files: transfers follow each other in the order of the rows.
    """
    transfers, left_out = [], defaultdict(int)
    lines = path.read_text(errors="replace").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    rows = csv.DictReader(line for line in lines if line.strip())
    names = {name.strip().lower(): name for name in rows.fieldnames or [] if name}
    needed = ["filesize", "filecount", "rtt", "parallelism", "concurrency", "pipelining", "throughput"]
    missing = [name for name in needed if name not in names]
    if missing:
        raise FileError(f"{path}: no GridFTP history: columns {', '.join(missing)} are missing")
    started = 0.0
    for row in rows:
        cell = {name: number(row[names[name]]) for name in [*needed, "fast"] if name in names}
        size, count, rate = cell["filesize"], cell["filecount"], (cell["throughput"] or 0) * 1e6
        if not size or not count or size <= 0 or count <= 0 or rate <= 0:
            left_out["no size or rate"] += 1
            continue
        seconds = size * count * 8 / rate
        if seconds < GRIDFTP_SECONDS_MIN or rate > GRIDFTP_RATE_MAX:
            left_out["shorter than 10 s or above 9 Gb/s"] += 1
            continue
        settings = {name: cell.get(name) for name in ("concurrency", "parallelism", "pipelining", "fast")}
        transfers.append(
            Transfer(
                started=started,
                source=(row.get(names.get("source", "")) or path.stem).strip(),
                destination=(row.get(names.get("destination", "")) or path.stem).strip(),
                seconds=seconds,
                bytes=size * count,
                synthetic=False,
                known={"files": count, "rtt_us": cell["rtt"] * 1e6 if cell["rtt"] else None, **settings},
                settings=(size, count, *settings.values()),
            )
        )
        started += seconds
    return transfers, dict(left_out)


#: Features of the GridFTP history, which knows nothing of hosts and storage.
GRIDFTP_FEATURES = [
    "bytes",
    "files",
    "mean_file_bytes",
    "rtt_us",
    "concurrency",
    "parallelism",
    "pipelining",
    "fast",
    "pair_last_bps",
    "pair_median_bps",
]


def add_features(transfers: list[Transfer]) -> None:
    """Computes the features of all transfers. Rates of a pair are those of its transfers that had ended before."""
    ended: dict[tuple[str, str], list[tuple[float, int, float]]] = defaultdict(list)
    for serial, transfer in enumerate(transfers):
        insort(ended[transfer.pair], (transfer.end, serial, transfer.rate))
    for transfer in transfers:
        of_pair = ended[transfer.pair]
        before = bisect_right(of_pair, (transfer.started, len(transfers), 0.0))
        rates = [rate for _, _, rate in of_pair[max(0, before - PAIR_RATES_MAX) : before]]
        known = dict(transfer.known)
        known["bytes"] = transfer.bytes
        files = known.get("files")
        known["mean_file_bytes"] = transfer.bytes / files if files else None
        known["pair_last_bps"] = rates[-1] if rates else None
        known["pair_median_bps"] = median(rates)
        known["hour_utc"] = transfer.started % 86400 / 3600
        known["weekday_utc"] = (transfer.started // 86400 + 3) % 7
        transfer.features = {name: math.nan if value is None else value for name, value in known.items()}


def median(values: list[float]) -> float | None:
    if not values:
        return None
    values = sorted(values)
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2
