"""Paths, listings, digests and errors of an agent's gateway (HTTP and WebDAV), without I/O."""

from __future__ import annotations

import errno
import os
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree

from penstock._core import problem_of
from penstock.errors import ResponseError

#: Port of the gateway.
GATEWAY_PORT = 8443

_DAV = "{DAV:}"


def quoted(path: str) -> str:
    """Returns a path for a request. Bytes of a name that are no UTF-8 stand in it as in those of `os.listdir`.

    >>> quoted("/data/a b#1%/ü")
    '/data/a%20b%231%25/%C3%BC'
    """
    return quote(path, safe="/~!$&'()*+,;=:@-._", errors="surrogateescape") or "/"


def parse_listing(content: bytes) -> list[dict[str, Any]]:
    """Returns the entries of a response to PROPFIND, each with name, size, type, mtime and ETag."""
    try:
        root = ElementTree.fromstring(content)  # noqa: S314 - expat refuses expansions of entities
    except ElementTree.ParseError as error:
        raise ResponseError(f"the listing is no XML ({error}): check the address of the gateway") from error
    found = []
    for response in root.iter(f"{_DAV}response"):
        href = response.findtext(f"{_DAV}href", "")
        path = unquote(urlsplit(href).path, errors="surrogateescape")
        entry: dict[str, Any] = {"name": path.rstrip("/") or "/", "size": 0, "type": "file"}
        for part in response.iter(f"{_DAV}prop"):
            if part.find(f"{_DAV}resourcetype/{_DAV}collection") is not None:
                entry["type"] = "directory"
            size = part.findtext(f"{_DAV}getcontentlength")
            if size is not None:
                entry["size"] = int(size)
            modified = part.findtext(f"{_DAV}getlastmodified")
            if modified:
                entry["mtime"] = _time(modified)
            tag = part.findtext(f"{_DAV}getetag")
            if tag:
                entry["etag"] = tag
        found.append(entry)
    return found


def _time(text: str) -> datetime | None:
    try:
        return parsedate_to_datetime(text)
    except ValueError:
        return None


def parse_digest(header: str | None) -> dict[str, str]:
    """Returns the values of a header `Digest` by algorithm.

    >>> parse_digest("adler32=08730247, sha-256=LPJN==")
    {'adler32': '08730247', 'sha-256': 'LPJN=='}
    """
    parts = (part.strip().partition("=") for part in (header or "").split(","))
    return {name.lower(): value for name, equals, value in parts if equals}


def parse_content_range(header: str | None) -> tuple[int, int, int] | None:
    """Returns first byte, last byte and size of a header `Content-Range`.

    >>> parse_content_range("bytes 1-2/5")
    (1, 2, 5)
    """
    unit, _, rest = (header or "").partition(" ")
    span, _, size = rest.partition("/")
    first, _, last = span.partition("-")
    try:
        return (int(first), int(last), int(size)) if unit == "bytes" else None
    except ValueError:
        return None


#: Statuses with the error of the operating system that fits.
_ERRNO = {
    401: errno.EACCES,
    403: errno.EACCES,
    404: errno.ENOENT,
    405: errno.EEXIST,
    409: errno.ENOENT,
    412: errno.EEXIST,
    423: errno.EBUSY,
    429: errno.EBUSY,
    503: errno.EBUSY,
    507: errno.ENOSPC,
}


def os_error(status: int, content: bytes, path: str) -> OSError:
    """Returns the error of the operating system for a failed request: FileNotFoundError, PermissionError, ..."""
    detail = problem_of(content).get("detail") or f"status {status}"
    number = _ERRNO.get(status, errno.EIO)
    # Constructing OSError with a number selects the subclass.
    return OSError(number, f"{os.strerror(number)}: {detail}", path)
