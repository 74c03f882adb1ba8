"""HTML of objects, compared with committed files; notebooks without outputs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import daemons
from penstock import LiveDisplay, display, models

GOLDEN = Path(__file__).with_name("golden")
NOTEBOOKS = sorted((daemons.ROOT / "python" / "notebooks").glob("*.ipynb"))


def request(**changes: object) -> models.Request:
    facts = {
        "id": 7, "state": "active", "paused": False, "cancelling": False, "open": False, "client": "alice",
        "class": "production", "source": "cern", "destination": "caltech", "from": "/store/<run7>", "to": "/store/in",
        "priority": 4, "files": 10, "files_active": 2, "files_done": 5, "files_failed": 1, "files_cancelled": 0,
        "bytes": 10_000_000_000, "bytes_done": 4_200_000_000, "submitted_unix_seconds": 1.8e9,
        "changed_unix_seconds": 1.8e9, "deadline_unix_seconds": 1_800_003_600, "bits_per_second": 94_000_000_000,
    }  # fmt: skip
    return models.Request.from_json({**facts, **changes})


def transfer(**changes: object) -> models.Transfer:
    facts = {
        "id": 3, "caller": "alice", "peer": "192.0.2.7", "direction": "receive", "path": "/data/run7",
        "state": "running", "started_unix_seconds": 1.8e9, "seconds": 2.0, "bytes": 0, "moved_bytes": 250_000_000,
        "resumed_bytes": 0, "announced_bytes": 1_000_000_000, "files": 0, "failed": 0, "streams": 4, "readers": 2,
        "writers": 8, "bits_per_second": 1_000_000_000, "bound_by": "network", "engine": "direct+io_uring",
        "retransmits": 0, "owner": "cms", "activity": "analysis-input",
    }  # fmt: skip
    return models.Transfer.from_json({**facts, **changes})


@pytest.mark.parametrize("shown", [request(), transfer()], ids=["request", "transfer"])
def test_html_equals_the_golden_file(shown: models.Request | models.Transfer) -> None:
    golden = GOLDEN / f"{type(shown).__name__.lower()}.html"
    html = shown._repr_html_() + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(html)
    assert html == golden.read_text()
    assert "<run7>" not in html


def test_progress_is_a_part() -> None:
    assert request().progress == pytest.approx(0.42)
    assert request(bytes=0, bytes_done=0).progress == 0.5
    assert request(state="done", files=0, bytes=0).progress == 1.0
    assert transfer().progress == 0.25
    assert transfer(announced_bytes=0).progress == 0.0
    assert transfer(state="done", announced_bytes=0).progress == 1.0


def test_tables_are_cut_and_escaped() -> None:
    rows = [{"name": "<b>", "bps": 2e9, "error_bps": None}] * 25
    html = display.table_html(rows)
    assert html.count("<tr>") == 21
    assert "&lt;b&gt;" in html
    assert html.count('nowrap;text-align:left">') == 21
    assert "2 Gb/s" in html
    assert "5 more rows" in html
    assert display.table_html([]) == "<p>no rows</p>"


def test_tables_begin_with_their_subject() -> None:
    cell = models.TelemetryMatrixCell(bps=1e9, destination="b", error_bps=1e6, source="a")
    matrix = models.TelemetryMatrix(cells=(cell,), from_s=0, measured_s=60.0, sites=(), to_s=60)
    assert list(matrix.rows()[0]) == ["source", "destination", "bps", "error_bps"]


def test_terminals_get_one_line_for_each_state(capsys: pytest.CaptureFixture[str]) -> None:
    show = LiveDisplay()
    for state in ("staged", "active", "active", "done"):
        show(request(state=state))
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["request 7: staged, 42%", "request 7: active, 42%", "request 7: done, 42%"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_notebooks_have_no_outputs(notebook: Path) -> None:
    for cell in json.loads(notebook.read_text())["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
