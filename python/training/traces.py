"""Traces of running transfers as intervals of one second, as `core/forecast/src/sequence/columns.rs` has them."""

import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from features import FileError

#: Name and unit of each column of an interval.
COLUMNS = [
    ("rate_bps", "bit/s"),
    ("streams", "count"),
    ("retransmit_share", "fraction"),
    ("rtt_min_us", "us"),
    ("rtt_ratio", "ratio"),
    ("source_empty", "fraction"),
    ("destination_full", "fraction"),
    ("rate_limit", "fraction"),
]
NAMES = [name for name, _ in COLUMNS]

#: Fields of a sample that are used.
USED = {
    "tcp": ("sent_segments", "retransmitted_segments", "rtt_min_us", "rtt_us"),
    "queues": ("source_empty", "destination_full", "rate_limit"),
}

#: Length of an interval; shorter samples are joined, longer ones refused.
INTERVAL_US = 1_000_000

#: Samples end some microseconds early or late.
INTERVAL_TOLERANCE = 0.1

#: Payload of a segment, where segments were not counted.
SEGMENT_BYTES = 1448

#: Largest number of a sample: sums and squares of such numbers are finite.
NUMBER_MAX = 1e18

#: Remedy for a file that cannot be read.
REMEDY = "remove the file, or record it again"


@dataclass
class Trace:
    """A transfer in intervals of one second."""

    name: str
    synthetic: bool
    variation: str
    #: A row for each interval, a column for each of COLUMNS; NaN where a value is not known.
    intervals: np.ndarray
    #: Rate of each interval without noise, which a simulator knows.
    true_bps: np.ndarray | None = None


@dataclass
class Samples:
    """Samples of one transfer while they are read."""

    synthetic: bool = False
    variation: str = "measured"
    samples: list[dict] = field(default_factory=list)
    true_bps: list[float] = field(default_factory=list)


def read(paths: list[Path]) -> tuple[list[Trace], dict[str, int], str]:
    """Traces of all files in their order, counts of what is left out, and the SHA-256 of the files."""
    traces, left_out, sha256 = [], defaultdict(int), hashlib.sha256()
    for path in paths:
        text = path.read_bytes()
        sha256.update(text)
        for name, found in samples_of(path, text).items():
            trace = trace_of(f"{path.name} {name}", found)
            if trace is None:
                left_out["samples of no length, or longer than 1.1 s"] += 1
            else:
                traces.append(trace)
    return traces, dict(left_out), sha256.hexdigest()


def samples_of(path: Path, text: bytes) -> dict[str, Samples]:
    """Samples of each transfer of a file: JSONL of the tuner's samples, or objects of `transfers show --why --json`."""
    found: dict[str, Samples] = defaultdict(Samples)
    for number, one in enumerate(objects(path, text)):
        try:
            add_object(found, number, one)
        except ValueError as error:
            raise FileError(f"{path}: object {number + 1}: {error}: {REMEDY}") from error
    return found


def add_object(found: dict[str, Samples], number: int, one: object) -> None:
    """Adds the samples of an object; ValueError where it has none."""
    one = of_object(one, "it")
    series = of_object(one.get("tuning") or one, "`tuning`").get("series")
    if isinstance(one.get("sample"), dict):
        samples = found[str(one.get("trace", ""))]
        samples.samples.append(checked(one["sample"]))
        if one.get("true_bps") is not None:
            samples.true_bps.append(count(one, "true_bps"))
    elif isinstance(series, list):
        samples = found[f"object {number}"]
        samples.samples += of_series([of_object(point, "a point of `series`") for point in series])
    else:
        raise ValueError("neither `sample` nor `series`")
    samples.synthetic |= one.get("synthetic") is True
    samples.variation = str(one.get("variation", samples.variation))


def of_object(value: object, name: str) -> dict:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is no object")
    return value


def count(values: dict, name: str) -> float:
    """A number from 0 to NUMBER_MAX; ValueError for anything else, such as NaN."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"`{name}` is no number from 0 to {NUMBER_MAX:.0e}")
    return value


def checked(sample: dict) -> dict:
    """The fields of a sample that are used; ValueError where one is missing or out of range."""
    active = of_object(sample.get("active"), "`active`")
    checked = {name: count(sample, name) for name in ("interval_us", "bytes")}
    checked["active"] = {"streams": count(active, "streams")}
    for group in ("tcp", "queues"):
        if sample.get(group) is not None:
            values = of_object(sample[group], f"`{group}`")
            names = [name for name in USED[group] if values.get(name) is not None]
            checked[group] = {name: count(values, name) for name in names}
    return checked


def objects(path: Path, text: bytes) -> list[dict]:
    """One object over several lines, or an object a line."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        pass
    else:
        return whole if isinstance(whole, list) else [whole]
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: neither a JSON object nor one a line ({error}): {REMEDY}") from error


def of_series(series: list[dict]) -> list[dict]:
    """Samples of rate and streams alone."""
    samples, before = [], 0.0
    for point in series:
        seconds = count(point, "seconds") - before
        before = count(point, "seconds")
        if seconds < 0:
            raise ValueError("`seconds` of `series` fall")
        samples.append(
            {
                "interval_us": seconds * 1e6,
                "bytes": count(point, "bits_per_second") * seconds / 8,
                "active": {"streams": count(point, "streams")},
            }
        )
    return samples


def trace_of(name: str, found: Samples) -> Trace | None:
    """Joins samples until they have a second. None if one is longer."""
    limit = INTERVAL_US * (1 + INTERVAL_TOLERANCE)
    rows, true_bps, pending = [], [], []
    has_truth = len(found.true_bps) == len(found.samples)
    for at, sample in enumerate(found.samples):
        if not 0 < sample["interval_us"] <= limit:
            return None
        pending.append(at)
        joined = [found.samples[at] for at in pending]
        if sum(one["interval_us"] for one in joined) >= INTERVAL_US * (1 - INTERVAL_TOLERANCE):
            rows.append(interval(joined))
            if has_truth:
                true_bps.append(weighted(joined, [found.true_bps[at] for at in pending]))
            pending = []
    return Trace(
        name=name,
        synthetic=found.synthetic,
        variation=found.variation,
        intervals=np.array(rows, dtype=np.float64).reshape(len(rows), len(COLUMNS)),
        true_bps=np.array(true_bps) if has_truth else None,
    )


def weighted(samples: list[dict], values: list[float]) -> float:
    lengths = [one["interval_us"] for one in samples]
    return sum(length * value for length, value in zip(lengths, values, strict=True)) / sum(lengths)


def interval(samples: list[dict]) -> list[float]:
    """Columns of samples that follow each other. Rates and shares are means, counts those of the last sample."""
    absent = float("nan")
    last = samples[-1]
    tcp = [one.get("tcp") for one in samples]
    moved = sum(one["bytes"] for one in samples)
    row = dict.fromkeys(NAMES, absent)
    row["rate_bps"] = moved * 8e6 / sum(one["interval_us"] for one in samples)
    row["streams"] = last["active"]["streams"]
    if all(tcp):
        sent = sum(
            one["bytes"] // SEGMENT_BYTES if counts.get("sent_segments") is None else counts["sent_segments"]
            for one, counts in zip(samples, tcp, strict=True)
        )
        again = sum(counts.get("retransmitted_segments", 0) for counts in tcp)
        row["retransmit_share"] = min(1.0, again / max(1, sent))
        smallest, smoothed = tcp[-1].get("rtt_min_us"), tcp[-1].get("rtt_us")
        if smallest:
            row["rtt_min_us"] = smallest
            row["rtt_ratio"] = absent if smoothed is None else smoothed / smallest
    if all("queues" in one for one in samples):
        for name in ("source_empty", "destination_full", "rate_limit"):
            row[name] = weighted(samples, [one["queues"].get(name, 0.0) for one in samples])
    return [row[name] for name in NAMES]
