"""The core without I/O: calls, errors, retries, events."""

from __future__ import annotations

import random

import pytest

from penstock import _core, models
from penstock.errors import ConflictError, InvalidRequestError, ResponseError, UnavailableError


def test_paths_and_queries_are_encoded() -> None:
    call = _core.build(
        "GET", "/api/v1/links/{name}", dict, path={"name": "a b/ü"}, query={"from": -1, "class": None, "by": ["x", "y"]}
    )
    assert call.path == "/api/v1/links/a%20b%2F%C3%BC"
    assert call.query == (("from", "-1"), ("by", "x,y"))


def test_problem_documents_become_errors() -> None:
    call = _core.build("POST", "/api/v1/requests", models.Request.from_json)
    problem = (
        b'{"type":"about:blank","title":"Bad Request","status":400,"detail":"no such class",'
        b'"errors":[{"pointer":"/class","detail":"unknown"}]}'
    )
    with pytest.raises(InvalidRequestError, match="no such class; /class: unknown") as caught:
        _core.parse_response(call, 400, problem)
    assert caught.value.errors[0].pointer == "/class"
    single = b'{"status":422,"detail":"/to: none","errors":[{"pointer":"/to","detail":"none"}]}'
    with pytest.raises(InvalidRequestError) as once:
        _core.parse_response(call, 422, single)
    assert str(once.value) == "POST /api/v1/requests: /to: none (422)"
    with pytest.raises(ConflictError):
        _core.parse_response(call, 409, b"{}")
    with pytest.raises(UnavailableError, match="upstream"):
        _core.parse_response(call, 502, b"<html>upstream")


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b'{"id": 1}', b"<html>", b"\xff"])
def test_other_responses_are_refused(content: bytes) -> None:
    call = _core.build("GET", "/api/v1/requests/{id}", models.Request.from_json, path={"id": 1})
    with pytest.raises(ResponseError):
        _core.parse_response(call, 200, content)


@pytest.mark.parametrize(
    ("method", "repeatable", "status", "was_sent", "expected"),
    [
        ("GET", None, None, True, True),
        ("GET", None, 503, True, True),
        ("GET", None, 500, True, False),
        ("GET", None, 404, True, False),
        ("POST", None, None, True, False),
        ("POST", None, None, False, True),
        ("POST", None, 503, True, False),
        ("POST", None, 429, True, True),
        ("POST", True, None, True, True),
        ("POST", True, 503, True, True),
        ("POST", True, 409, True, False),
    ],
)
def test_retries_are_safe(
    method: str, repeatable: bool | None, status: int | None, was_sent: bool, expected: bool
) -> None:
    call = _core.build(method, "/x", dict, repeatable=repeatable)
    assert _core.may_repeat(call, status, was_sent) is expected


def test_retry_waits_are_bounded() -> None:
    retry = _core.Retry(attempts=6, first_s=1, longest_s=4, random=random.Random(1))
    for failures in range(5):
        wait = retry.delay(failures)
        assert wait is not None
        assert 0 <= wait <= min(4, 2**failures)
    assert retry.delay(5) is None
    assert retry.delay(0, retry_after_s=3) == 3
    assert retry.delay(0, retry_after_s=300) is None


def test_events_survive_any_split() -> None:
    text = ": hello\r\n\nid: 1\nevent: order\ndata: a\ndata:b\n\nretry: 250\nid: 2\ndata: ü\r\n\r\nid: 3\n".encode()
    text += b"data: lost"
    whole = _core.EventDecoder().feed(text)
    assert whole == [_core.ServerEvent("order", "a\nb", "1"), _core.ServerEvent("message", "ü", "2")]
    for size in range(1, 12):
        decoder = _core.EventDecoder()
        parts = [event for at in range(0, len(text), size) for event in decoder.feed(text[at : at + size])]
        assert parts == whole
        assert decoder.retry_s == 0.25


def test_endless_events_are_refused() -> None:
    decoder = _core.EventDecoder()
    with pytest.raises(ResponseError, match="bytes"):
        for _ in range(40):
            decoder.feed(b"data: " + b"x" * (1 << 20))
    decoder = _core.EventDecoder()
    with pytest.raises(ResponseError, match="bytes"):
        for _ in range(40):
            decoder.feed(b"data: " + b"x" * (1 << 20) + b"\n")
