"""Telemetry as tables: the same columns and types, whatever the rows are."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import models


def talkers(*activities: str | None) -> models.TelemetryTalkers:
    flow: dict[str, Any] = {"source": "192.0.2.1", "source_port": 1, "destination": "192.0.2.2", "destination_port": 2}
    flow |= {"bps": 8, "error_bps": 1.5, "least_bps": 0, "most_bps": 9, "label": "labelled", "protocol": 6}
    found = [flow | {"activity": activity} for activity in activities]
    return models.TelemetryTalkers.from_json({"talkers": found, "bps": 0, "error_bps": 0, "from_s": 0, "length_s": 1})


def empty_tables() -> list[Any]:
    line: dict[str, Any] = {"bps": [], "error_bps": [], "counted_share": [], "from": "samples"}
    series = {"filters": [], "measured_s": [], "now_s": 0, "resolution": "1s", "series": [], "start_s": 0, "step_s": 1}
    series |= {"store": "memory", "total": line, "unit": "bit/s"}
    link = {"a": "a", "b": "b", "name": "l", "a_to_b": line, "b_to_a": line, "capacity_bps": 1}
    return [
        talkers(),
        models.TelemetryMatrix.from_json({"cells": [], "sites": [], "from_s": 0, "to_s": 1, "measured_s": 1}),
        models.TelemetrySeries.from_json(series),
        models.TelemetryLinkSeries.from_json(link | {"resolution": "1s", "start_s": 0, "step_s": 1}),
    ]


def test_empty_tables_have_their_columns() -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    for found in empty_tables():
        assert found.rows() == []
        assert {"bps", "error_bps"} <= set(found.to_pandas().columns), type(found)
        table = found.to_arrow()
        assert table.num_rows == 0
        assert table.column_names == list(found.to_pandas().columns)


def test_column_types_are_constant() -> None:
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    tables = [talkers(*activities).to_arrow() for activities in ((None,), ("production", None), ())]
    whole = pa.concat_tables(tables)
    assert whole["activity"].to_pylist() == [None, "production", None]
    assert whole.schema.field("bps").type == pa.float64()
    frame = talkers("production").to_pandas()
    assert list(frame.columns[:2]) == ["source", "source_port"]
    assert frame.bps.tolist() == [8]
