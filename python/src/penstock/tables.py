"""Telemetry as rows, pandas data frames or Arrow tables."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import datetime, timezone
from typing import Any, Literal, get_args, get_origin, get_type_hints

from penstock import models
from penstock._values import ArgumentError


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def _series(found: models.TelemetrySeries) -> list[dict[str, Any]]:
    return [
        {
            "time": _time(found.start_s + index * found.step_s),
            "key": line.key,
            "name": line.name,
            "bps": bps,
            "error_bps": error,
        }
        for line in found.series
        for index, (bps, error) in enumerate(zip(line.bps, line.error_bps, strict=True))
    ]


def _link_series(found: models.TelemetryLinkSeries) -> list[dict[str, Any]]:
    return [
        {
            "time": _time(found.start_s + index * found.step_s),
            "link": found.name,
            "from": source,
            "to": destination,
            "bps": bps,
            "error_bps": error,
        }
        for source, destination, line in (
            (found.a, found.b, found.a_to_b),
            (found.b, found.a, found.b_to_a),
        )
        for index, (bps, error) in enumerate(zip(line.bps, line.error_bps, strict=True))
    ]


def _flat(item: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the fields of a dataclass, those of nested ones with the name of their field before theirs."""
    row: dict[str, Any] = {}
    for field in fields(item):
        value = getattr(item, field.name)
        name = prefix + field.name.rstrip("_")
        if hasattr(value, "__dataclass_fields__"):
            row.update(_flat(value, f"{name}_"))
        else:
            row[name] = value
    return row


#: List in each object, and the columns that come first: subject of the row, then its figures.
_LISTS: dict[type, tuple[str, tuple[str, ...]]] = {
    models.TelemetryEvents: ("events", ("at_s", "severity", "kind", "subject", "text")),
    models.TelemetryInterfaces: ("interfaces", ("host", "name", "site", "up")),
    models.TelemetryLinks: ("links", ("name", "a", "b", "up")),
    models.TelemetryMatrix: ("cells", ("source", "destination", "bps", "error_bps")),
    models.TelemetryTalkers: (
        "talkers",
        ("source", "source_port", "destination", "destination_port", "activity", "bps", "error_bps"),
    ),
}


def _ordered(row: dict[str, Any], first: tuple[str, ...]) -> dict[str, Any]:
    return {**{name: row[name] for name in first}, **row}


def rows(found: Any) -> list[dict[str, Any]]:
    """Returns a telemetry object as dicts with equal keys."""
    if isinstance(found, models.TelemetrySeries):
        return _series(found)
    if isinstance(found, models.TelemetryLinkSeries):
        return _link_series(found)
    if type(found) not in _LISTS:
        raise ArgumentError(f"{type(found).__name__} has no rows")
    name, first = _LISTS[type(found)]
    return [_ordered(_flat(item), first) for item in getattr(found, name)]


#: Columns of series with the types of their values.
_SERIES_COLUMNS = {"time": datetime, "key": str, "name": str, "bps": float, "error_bps": float}
_LINK_SERIES_COLUMNS = {"time": datetime, "link": str, "from": str, "to": str, "bps": float, "error_bps": float}


def _flat_columns(kind: type, prefix: str = "") -> dict[str, Any]:
    """Returns the columns of `_flat` with the types of their values, by the fields of a dataclass."""
    columns: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        known = [one for one in get_args(hint) if one is not type(None)] if get_origin(hint) is not Literal else []
        plain = known[0] if len(known) == 1 else hint
        column = prefix + name.rstrip("_")
        if isinstance(plain, type) and is_dataclass(plain) and plain is hint:
            columns.update(_flat_columns(plain, f"{column}_"))
        else:
            columns[column] = str if get_origin(plain) is Literal else plain
    return columns


def columns(found: Any) -> dict[str, Any]:
    """Returns the columns of a telemetry object with the types of their values: the same whether it has rows or not."""
    if isinstance(found, models.TelemetrySeries):
        return _SERIES_COLUMNS
    if isinstance(found, models.TelemetryLinkSeries):
        return _LINK_SERIES_COLUMNS
    if type(found) not in _LISTS:
        raise ArgumentError(f"{type(found).__name__} has no rows")
    name, first = _LISTS[type(found)]
    (item, _rest) = get_args(get_type_hints(type(found))[name])
    return _ordered(_flat_columns(item), first)


def to_pandas(found: Any) -> Any:
    """Returns the rows as a data frame."""
    import pandas

    return pandas.DataFrame.from_records(rows(found), columns=list(columns(found)))


def to_arrow(found: Any) -> Any:
    """Returns the rows as a table; times are UTC timestamps in microseconds."""
    import pyarrow

    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    types[datetime] = pyarrow.timestamp("us", tz="UTC")
    schema = pyarrow.schema([(name, types[kind]) for name, kind in columns(found).items()])
    return pyarrow.Table.from_pylist(rows(found), schema=schema)
