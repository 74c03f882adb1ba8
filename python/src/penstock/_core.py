"""Requests, responses and retries without I/O: build a call, judge its outcome, parse its response."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from penstock.errors import ApiError, ResponseError, api_error

T = TypeVar("T")

#: Longest response that is read, in bytes.
RESPONSE_BYTES_MAX = 64 << 20

#: Statuses of a response after which a repeatable call is sent again.
RETRIED_STATUSES = frozenset({429, 502, 503, 504})

#: Methods that have the same effect when repeated.
IDEMPOTENT_METHODS = frozenset({"GET", "HEAD", "PUT", "DELETE"})

QueryValue = str | int | float | bool | Sequence[str] | None


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request of the API and the parser of its response."""

    method: str
    path: str
    """Path with its parameters filled in."""
    parse: Callable[[Any], T]
    query: tuple[tuple[str, str], ...] = ()
    body: Any = None
    repeatable: bool = False
    """True where a repeated request has the effect of one."""

    @property
    def name(self) -> str:
        """Method and path, for messages."""
        return f"{self.method} {self.path}"

    def content(self) -> bytes | None:
        """Returns the encoded body."""
        return None if self.body is None else json.dumps(self.body).encode()


def query_pairs(query: Mapping[str, QueryValue]) -> tuple[tuple[str, str], ...]:
    """Returns the given parameters as text; those that are None are left out, lists are joined by commas."""
    pairs = []
    for name, value in query.items():
        if value is None:
            continue
        if isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, (str, int, float)):
            text = str(value)
        else:
            text = ",".join(value)
        pairs.append((name.removesuffix("_"), text))
    return tuple(pairs)


def build(
    method: str,
    template: str,
    parse: Callable[[Any], T],
    *,
    path: Mapping[str, str | int] | None = None,
    query: Mapping[str, QueryValue] | None = None,
    body: Any = None,
    repeatable: bool | None = None,
) -> Call[T]:
    """Builds a call from a path of openapi.json such as `/api/v1/requests/{id}`.

    >>> build("GET", "/api/v1/links/{name}", dict, path={"name": "a/b"}).path
    '/api/v1/links/a%2Fb'
    """
    filled = {name: quote(str(value), safe="") for name, value in (path or {}).items()}
    return Call(
        method=method,
        path=template.format(**filled),
        parse=parse,
        query=query_pairs(query or {}),
        body=body,
        repeatable=method in IDEMPOTENT_METHODS if repeatable is None else repeatable,
    )


def parse_response(call: Call[T], status: int, content: bytes) -> T:
    """Returns the parsed object of a successful response.

    Raises ApiError for an error status, ResponseError for anything that is not of this API.
    """
    if not 200 <= status < 300:
        raise api_error(status, problem_of(content), call.name)
    try:
        return call.parse(json.loads(content) if content else None)
    except KeyError as error:
        raise ResponseError(
            f"{call.name}: the response has no field {error}: server and client differ in version"
        ) from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ResponseError(f"{call.name}: the response is not of this API ({error}): check the port") from error


def problem_of(content: bytes) -> dict[str, Any]:
    """Returns the problem document of a response, or one made of its text."""
    try:
        document = json.loads(content)
    except ValueError:
        document = None
    if isinstance(document, dict):
        return document
    text = content[:500].decode("utf-8", "replace").strip()
    return {"detail": text} if text else {}


@dataclass(frozen=True)
class Retry:
    """Retries of calls that may be repeated: exponential back-off with full jitter.

    >>> Retry(first_s=1, longest_s=4).bound(0), Retry(first_s=1, longest_s=4).bound(5)
    (1.0, 4.0)
    """

    attempts: int = 5
    """Most requests for one call."""
    first_s: float = 0.2
    """Bound on the wait before the second request."""
    longest_s: float = 10.0
    """Bound on any wait; a longer `Retry-After` ends the call."""
    outage_s: float = 300.0
    """Time without an answer after which `wait` fails, too: a server may be restarted meanwhile."""
    random: Random = field(default_factory=Random, compare=False)

    def bound(self, failures: int) -> float:
        """Returns the longest wait after `failures` + 1 failed requests."""
        return float(min(self.longest_s, self.first_s * 2.0**failures))

    def delay(self, failures: int, retry_after_s: float | None = None) -> float | None:
        """Returns the wait before the next request in seconds; None where there is no further request."""
        if failures + 1 >= self.attempts:
            return None
        if retry_after_s is not None:
            return retry_after_s if retry_after_s <= self.longest_s else None
        return self.random.uniform(0, self.bound(failures))


class Outage:
    """Time for which a server does not answer a caller who waits.

    >>> outage = Outage(limit_s=10)
    >>> outage.is_over_limit(now_s=100), outage.is_over_limit(now_s=109), outage.is_over_limit(now_s=111)
    (False, False, True)
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._start_s: float | None = None

    def end(self) -> None:
        """Takes an answer."""
        self._start_s = None

    def is_over_limit(self, now_s: float) -> bool:
        """Takes a failure, and returns true where the outage has lasted longer than the limit."""
        if self._start_s is None:
            self._start_s = now_s
        return now_s - self._start_s > self._limit_s


def may_repeat(call: Call[Any], status: int | None, was_sent: bool) -> bool:
    """True where a failed call may be sent again.

    A call that was not sent may always be. A 429 says that nothing was done. Otherwise only repeatable calls
    are sent again: after a broken connection (`status` None), 502, 503 and 504.
    """
    if not was_sent or status == 429:
        return True
    return call.repeatable and (status is None or status in RETRIED_STATUSES)


def retry_after(value: str | None) -> float | None:
    """Returns the seconds of a header `Retry-After`; None for dates and malformed values.

    >>> retry_after("5"), retry_after("Wed, 21 Oct 2026 07:28:00 GMT")
    (5.0, None)
    """
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def is_absent(error: ApiError) -> bool:
    """True for the error of a server that lacks the path: it plays another role, or is older."""
    return error.status == 404 and "no such path" in error.detail


@dataclass(frozen=True)
class ServerEvent:
    """One server-sent event."""

    event: str
    data: str
    id: str | None


class EventDecoder:
    """Decoder of a stream of server-sent events (HTML standard, 9.2.6).

    >>> decoder = EventDecoder()
    >>> decoder.feed(b"id: 7\\nevent: order\\ndata: {}\\n\\nda")
    [ServerEvent(event='order', data='{}', id='7')]
    >>> decoder.last_id
    '7'
    """

    #: Longest event, in bytes.
    EVENT_BYTES_MAX = 16 << 20

    def __init__(self) -> None:
        self.last_id: str | None = None
        self.retry_s: float | None = None
        self._rest = b""
        self._event = ""
        self._data: list[str] = []
        self._bytes = 0

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Takes the next bytes of the stream; returns the events that they complete."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) + self._bytes > self.EVENT_BYTES_MAX:
            raise ResponseError(f"an event has more than {self.EVENT_BYTES_MAX} bytes")
        found = []
        for line in lines:
            event = self._line(line.removesuffix(b"\r").decode("utf-8", "replace"))
            if event is not None:
                found.append(event)
        return found

    def reset(self) -> None:
        """Drops an incomplete event, for a new connection; the last id stays."""
        self._rest, self._event, self._data, self._bytes = b"", "", [], 0

    def _line(self, line: str) -> ServerEvent | None:
        if not line:
            event = None
            if self._data:
                event = ServerEvent(self._event or "message", "\n".join(self._data), self.last_id)
            self._event, self._data, self._bytes = "", [], 0
            return event
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._bytes += len(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self.last_id = value
        elif name == "retry" and value.isdecimal():
            self.retry_s = int(value) / 1000
        return None
