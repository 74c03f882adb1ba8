"""HTML of objects for notebooks, and a display that follows a transfer.

Plain HTML without scripts: it is the same in every front end and after an export.
"""

from __future__ import annotations

from datetime import datetime
from html import escape
from typing import Any

_BAR = (
    '<div style="width:20em;height:0.8em;border:1px solid #888;border-radius:3px;overflow:hidden" role="progressbar" '
    'aria-valuemin="0" aria-valuemax="100" aria-valuenow="{percent:.0f}">'
    '<div style="width:{percent:.1f}%;height:100%;background:{colour}"></div></div>'
)

_COLOURS = {"done": "#2e7d32", "partial": "#ef6c00", "failed": "#c62828", "cancelled": "#757575"}


def bytes_text(count: float) -> str:
    """Returns a count of bytes with an SI prefix.

    >>> bytes_text(1_500_000)
    '1.5 MB'
    """
    return _with_prefix(count, "B")


def rate_text(bits_per_second: float | None) -> str:
    """Returns a rate with an SI prefix.

    >>> rate_text(94e9), rate_text(None)
    ('94 Gb/s', '-')
    """
    return "-" if bits_per_second is None else _with_prefix(bits_per_second, "b/s")


def _with_prefix(value: float, unit: str) -> str:
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(value) < 1000 or prefix == "P":
            break
        value /= 1000
    return f"{value:.3g} {prefix}{unit}" if abs(value) < 1000 else f"{value:.0f} {prefix}{unit}"


def _card(title: str, state: str, progress: float, facts: list[tuple[str, str]]) -> str:
    bar = _BAR.format(percent=100 * progress, colour=_COLOURS.get(state, "#1565c0"))
    rows = "".join(
        f'<tr><th style="text-align:left;padding-right:1em">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in facts
        if value
    )
    return f"<div><b>{escape(title)}</b> <code>{escape(state)}</code>{bar}<table>{rows}</table></div>"


def request_html(request: Any) -> str:
    """Returns the HTML of a request of a controller."""
    facts = [
        ("from", f"{request.source}:{request.from_}"),
        ("to", f"{request.destination}:{request.to}"),
        ("class", f"{request.class_}, priority {request.priority}"),
        ("files", f"{request.files_done} of {request.files}" + _failed(request.files_failed)),
        ("bytes", f"{bytes_text(request.bytes_done)} of {bytes_text(request.bytes)}"),
        ("rate", "" if request.has_ended else rate_text(request.bits_per_second)),
        ("deadline", _when(request.deadline_at)),
        ("deadline problem", request.deadline_problem or ""),
        ("waiting", request.waiting or ""),
        ("trouble", request.trouble or ""),
    ]
    return _card(f"Request {request.id}", request.state, request.progress, facts)


def transfer_html(transfer: Any) -> str:
    """Returns the HTML of a transfer of an agent."""
    submitted = getattr(transfer, "submitted", None)
    facts = [
        ("path", transfer.path),
        ("peer", transfer.peer),
        ("files", f"{transfer.files}" + _failed(transfer.failed)),
        ("bytes", f"{bytes_text(transfer.bytes)} of {bytes_text(transfer.announced_bytes)}"),
        ("rate", rate_text(transfer.bits_per_second)),
        ("streams", str(transfer.streams)),
        ("bound by", transfer.bound_by),
        ("owner", " / ".join(word for word in (transfer.owner, transfer.activity) if word)),
        ("error", getattr(submitted, "error", None) or ""),
    ]
    return _card(f"Transfer {transfer.id}", transfer.state, transfer.progress, facts)


def table_html(rows: list[dict[str, Any]], limit: int = 20) -> str:
    """Returns the HTML of the first rows of a table."""
    if not rows:
        return "<p>no rows</p>"
    # Front ends align every cell to the right and break lines within a rate.
    styles = {
        name: f"white-space:nowrap;text-align:{'left' if isinstance(value, str) else 'right'}"
        for name, value in rows[0].items()
    }
    head = "".join(f'<th style="{style}">{escape(name)}</th>' for name, style in styles.items())
    body = "".join(
        "<tr>"
        + "".join(f'<td style="{styles[name]}">{escape(_cell(name, row[name]))}</td>' for name in styles)
        + "</tr>"
        for row in rows[:limit]
    )
    more = f"<p>{len(rows) - limit} more rows</p>" if len(rows) > limit else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _failed(count: int) -> str:
    return f", {count} failed" if count else ""


def _when(time: datetime | None) -> str:
    return "" if time is None else time.strftime("%Y-%m-%d %H:%M:%S UTC")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return _when(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and name.endswith("bps"):
        return rate_text(value)
    return str(value)


class LiveDisplay:
    """Shows an object in a notebook and replaces it as it changes; `progress=` of `wait` takes it.

        request.wait(progress=LiveDisplay())

    Outside a notebook it prints one line for each state.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._state: str | None = None

    def __call__(self, shown: Any) -> None:
        """Shows the object."""
        try:
            from IPython import get_ipython
            from IPython.display import display
        except ImportError:
            self._print(shown)
            return
        if get_ipython() is None:
            self._print(shown)
        elif self._handle is None:
            show: Any = display
            self._handle = show(shown, display_id=True)
        else:
            self._handle.update(shown)

    def _print(self, shown: Any) -> None:
        if shown.state != self._state:
            self._state = shown.state
            print(f"{type(shown).__name__.lower()} {shown.id}: {shown.state}, {shown.progress:.0%}")
