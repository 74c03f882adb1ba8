"""Values of arguments: times, sites with paths."""

from __future__ import annotations

import time
from datetime import datetime

from penstock.errors import PenstockError


class ArgumentError(PenstockError, ValueError):
    """An argument that has no meaning."""


def unix_seconds(when: float | datetime | None) -> int | None:
    """Returns seconds since 1970 of a time, or of seconds from now.

    >>> from datetime import timezone
    >>> unix_seconds(datetime(2026, 1, 1, tzinfo=timezone.utc))
    1767225600
    """
    if when is None:
        return None
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ArgumentError(f"{when} has no time zone: use datetime.now(timezone.utc) + ...")
        return round(when.timestamp())
    return round(time.time() + when)


def site_path(text: str) -> tuple[str, str]:
    """Splits `SITE:/DIRECTORY`.

    >>> site_path("cern:/store/run7")
    ('cern', '/store/run7')
    """
    site, colon, path = text.partition(":")
    if not site or not colon or not path.startswith("/") or path.startswith("//"):
        raise ArgumentError(f"'{text}' is no site with a directory: write it like cern:/store/run7")
    return site, path
