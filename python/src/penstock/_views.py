"""Bases of generated classes that show an object in a notebook or convert it to a table."""

from __future__ import annotations

from typing import Any

#: States in which a request or transfer has ended.
REQUEST_ENDS = frozenset({"done", "partial", "failed", "cancelled"})
TRANSFER_ENDS = frozenset({"done", "partial", "failed", "cancelled"})


class RequestView:
    """Shows a request of a controller."""

    __slots__ = ()

    @property
    def has_ended(self) -> bool:
        """True once no file of it will move any more."""
        return getattr(self, "state", None) in REQUEST_ENDS

    @property
    def progress(self) -> float:
        """Part of the known bytes, or of the files where they are empty, that is in place: 0 to 1."""
        return _part(self, "bytes_done", "bytes", "files_done", "files", self.has_ended)

    def _repr_html_(self) -> str:
        from penstock import display

        return display.request_html(self)


class TransferView:
    """Shows a transfer of an agent."""

    __slots__ = ()

    @property
    def has_ended(self) -> bool:
        """True once nothing of it moves any more."""
        return getattr(self, "state", None) in TRANSFER_ENDS

    @property
    def progress(self) -> float:
        """Part of the announced bytes that is in place or moved: 0 to 1."""
        me: Any = self
        if me.state == "done":
            return 1.0
        total = me.announced_bytes
        return float(min(1.0, max(me.bytes, me.moved_bytes + me.resumed_bytes) / total)) if total else 0.0

    def _repr_html_(self) -> str:
        from penstock import display

        return display.transfer_html(self)


def _part(me: Any, done: str, total: str, files_done: str, files: str, ended: bool) -> float:
    for part, whole in ((done, total), (files_done, files)):
        if getattr(me, whole):
            return float(min(1.0, getattr(me, part) / getattr(me, whole)))
    return 1.0 if ended and me.state == "done" else 0.0


class TableView:
    """Converts a telemetry object to rows, pandas or Arrow."""

    __slots__ = ()

    def rows(self) -> list[dict[str, Any]]:
        """Returns a list of dicts with equal keys; times are aware datetimes, absent values None."""
        from penstock import tables

        return tables.rows(self)

    def to_pandas(self) -> Any:
        """Returns a `pandas.DataFrame` (needs `penstock[pandas]`)."""
        from penstock import tables

        return tables.to_pandas(self)

    def to_arrow(self) -> Any:
        """Returns a `pyarrow.Table` (needs `penstock[arrow]`)."""
        from penstock import tables

        return tables.to_arrow(self)

    def _repr_html_(self) -> str:
        from penstock import display

        return display.table_html(self.rows())
