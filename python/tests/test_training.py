"""Files of other programs as input of the training: each is refused in one line with the remedy, or left out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy")
sys.path.append(str(Path(__file__).resolve().parents[1] / "training"))

import features
import traces

SAMPLE = {
    "interval_us": 500_000,
    "bytes": 1_000_000,
    "active": {"readers": 1, "streams": 4, "writers": 1},
    "tcp": {"retransmitted_segments": 0, "rtt_us": 2000, "rtt_min_us": 1000},
    "queues": {"source_empty": 0.1, "destination_full": 0.0, "rate_limit": 0.0},
}


def of_sample(**changes: object) -> bytes:
    return json.dumps({"sample": SAMPLE | changes}).encode() + b"\n"


def read(path: Path, text: bytes) -> tuple[list[traces.Trace], dict[str, int]]:
    path.write_bytes(text)
    found, left_out, _ = traces.read([path])
    return found, left_out


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (of_sample(bytes=float("nan")), "`bytes` is no number from 0 to 1e+18"),
        (of_sample(bytes=float("inf")), "`bytes` is no number"),
        (of_sample(bytes=-1), "`bytes` is no number"),
        (of_sample(bytes=10**400), "`bytes` is no number"),
        (of_sample(bytes="many"), "`bytes` is no number"),
        (of_sample(bytes=True), "`bytes` is no number"),
        (of_sample(interval_us=None), "`interval_us` is no number"),
        (of_sample(active=None), "`active` is no object"),
        (of_sample(active={}), "`streams` is no number"),
        (of_sample(tcp=[1]), "`tcp` is no object"),
        (of_sample(queues={"rate_limit": -0.5}), "`rate_limit` is no number"),
        (of_sample()[:-9], "neither a JSON object nor one a line"),
        (b"\xff\xfe\x00", "neither a JSON object nor one a line"),
        (b"[" * 100_000, "neither a JSON object nor one a line"),
        (b"[1, 2]", "it is no object"),
        (b"{}", "neither `sample` nor `series`"),
        (b'{"tuning": 7}', "`tuning` is no object"),
        (b'{"series": [3]}', "a point of `series` is no object"),
        (b'{"series": [{"seconds": 1}]}', "`bits_per_second` is no number"),
        (
            b'{"series": [{"seconds": 1, "bits_per_second": 8, "streams": 1}, {"seconds": 0}]}',
            "`seconds` of `series` fall",
        ),
    ],
)
def test_hostile_trace_is_refused(tmp_path: Path, text: bytes, reason: str) -> None:
    with pytest.raises(features.FileError) as caught:
        read(tmp_path / "trace.jsonl", text)
    message = str(caught.value)
    assert reason in message
    assert "trace.jsonl: " in message
    assert message.endswith("remove the file, or record it again")
    assert "\n" not in message


def test_odd_sizes_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    assert read(path, b"") == ([], {})
    for interval_us in (0, 2_000_000):
        assert read(path, of_sample(interval_us=interval_us)) == (
            [],
            {"samples of no length, or longer than 1.1 s": 1},
        )
    (trace,), left_out = read(path, of_sample() * 3)
    assert left_out == {}
    assert trace.intervals.shape == (1, len(traces.COLUMNS)), "the last half second is left over"
    assert trace.intervals[0][0] == 16e6


def export(path: Path, **changes: str) -> tuple[list[features.Transfer], dict[str, int]]:
    row = dict.fromkeys(features.EXPORT_COLUMNS, "")
    row |= {"verdict": "done", "protocol": "penstock", "moved_bytes": "8000", "seconds": "2"}
    row |= {"started_unix_seconds": "1800000000", "synthetic": "false", "files": "1"} | changes
    path.write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n")
    return features.read_export(path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"started_unix_seconds": "soon"}, "no time"),
        ({"started_unix_seconds": "nan"}, "no time"),
        ({"started_unix_seconds": "-1e300"}, "no time"),
        ({"seconds": "1e-300"}, "rate out of range"),
        ({"seconds": "1e20"}, "rate out of range"),
        ({"moved_bytes": "-1"}, "nothing moved"),
        ({"moved_bytes": "inf"}, "nothing moved"),
    ],
)
def test_odd_rows_are_left_out(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    assert export(tmp_path / "history.csv", **changes) == ([], {reason: 1})


def test_odd_cells_are_unknown(tmp_path: Path) -> None:
    (transfer,), _ = export(tmp_path / "history.csv", files="1e308", load_1min="1e300", processors="1e-320")
    assert transfer.known["files"] is None
    assert transfer.known["load_per_processor"] is None


def test_hostile_history_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    transfers, left_out = export(path)
    assert (len(transfers), left_out) == (1, {})
    whole = path.read_bytes()
    long_cell = whole + b"x" * 200_000 + b"\n"
    for text in (b"", b"\xff\xfe", b"started_unix_seconds\n1\n", long_cell):
        path.write_bytes(text)
        with pytest.raises(features.FileError, match="make one with penstock tune export") as caught:
            features.read_export(path)
        assert "\n" not in str(caught.value)
    # A row that was cut short.
    path.write_bytes(whole.splitlines(keepends=True)[0] + b"1800000000,a\n")
    assert features.read_export(path) == ([], {"verdict ": 1})
