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

#: Length of an interval; shorter samples are joined, longer ones refused.
INTERVAL_US = 1_000_000

#: Samples end some microseconds early or late.
INTERVAL_TOLERANCE = 0.1

#: Payload of a segment, where segments were not counted.
SEGMENT_BYTES = 1448


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
                left_out["samples longer than 1.1 s"] += 1
            else:
                traces.append(trace)
    return traces, dict(left_out), sha256.hexdigest()


def samples_of(path: Path, text: bytes) -> dict[str, Samples]:
    """Samples of each transfer of a file: JSONL of the tuner's samples, or objects of `transfers show --why --json`."""
    found: dict[str, Samples] = defaultdict(Samples)
    for number, one in enumerate(objects(path, text)):
        series = (one.get("tuning") or one).get("series")
        if isinstance(one.get("sample"), dict):
            samples = found[str(one.get("trace", ""))]
            samples.samples.append(one["sample"])
            if one.get("true_bps") is not None:
                samples.true_bps.append(float(one["true_bps"]))
        elif isinstance(series, list):
            samples = found[f"object {number}"]
            samples.samples += of_series(series)
        else:
            raise FileError(f"{path}: object {number + 1} has neither `sample` nor `series`")
        samples.synthetic |= one.get("synthetic") is True
        samples.variation = one.get("variation", samples.variation)
    return found


def objects(path: Path, text: bytes) -> list[dict]:
    """One object over several lines, or an object a line."""
    try:
        whole = json.loads(text)
    except ValueError:
        pass
    else:
        return whole if isinstance(whole, list) else [whole]
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise FileError(f"{path}: neither a JSON object nor one a line: {error}") from error


def of_series(series: list[dict]) -> list[dict]:
    """Samples of rate and streams alone."""
    samples, before = [], 0.0
    for point in series:
        seconds = point["seconds"] - before
        before = point["seconds"]
        samples.append(
            {
                "interval_us": seconds * 1e6,
                "bytes": point["bits_per_second"] * seconds / 8,
                "active": {"streams": point["streams"]},
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
