"""Errors of this package; each message names the object, the reason and the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class PenstockError(Exception):
    """Base of all errors of this package."""


class CredentialsError(PenstockError):
    """No token or certificate fingerprint is known for a server, or the file of logins cannot be used."""


class ConnectionFailedError(PenstockError):
    """No server answers, or a connection broke and the request may not be repeated."""


class CertificateMismatchError(PenstockError):
    """The server's certificate is not the expected one. The token was not sent."""


class ResponseError(PenstockError):
    """The response is not one of this API, or of an incompatible version."""


class WaitTimeoutError(PenstockError, TimeoutError):
    """A transfer or request has not ended within the given time; it continues."""


class TransferFailedError(PenstockError):
    """A transfer or request ended without all of its files in place.

    `result` is the last `Transfer` or `Request`.
    """

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result


class ChecksumMismatchError(PenstockError, OSError):
    """The server stored other bytes than were sent."""


@dataclass(frozen=True)
class FieldError:
    """A field of a request that is not valid."""

    pointer: str
    """JSON pointer of the field, or the name of the parameter."""
    detail: str


class ApiError(PenstockError):
    """A response with an error status; carries the problem document (RFC 9457)."""

    def __init__(self, status: int, problem: Mapping[str, Any], operation: str) -> None:
        self.status = status
        self.problem = dict(problem)
        self.title = str(problem.get("title", ""))
        self.detail = str(problem.get("detail") or problem.get("title") or f"status {status}")
        self.instance = problem.get("instance")
        self.errors = tuple(
            FieldError(str(one.get("pointer", "")), str(one.get("detail", ""))) for one in problem.get("errors") or ()
        )
        self.retry_after_s: float | None = None
        faults = [f"{one.pointer}: {one.detail}" for one in self.errors]
        # The detail of a single fault is that fault.
        text = "; ".join([self.detail, *(fault for fault in faults if fault != self.detail)])
        super().__init__(f"{operation}: {text} ({status})")


class InvalidRequestError(ApiError):
    """The request is malformed or has invalid values (400, 413, 415, 422)."""


class UnauthorizedError(ApiError):
    """The token is unknown, expired or missing (401)."""


class ForbiddenError(ApiError):
    """The token does not permit this (403)."""


class NotFoundError(ApiError):
    """The object does not exist, or the token may not see it (404)."""


class ConflictError(ApiError):
    """The state of the object does not permit this, or a key is in use for another body (409, 412)."""


class RateLimitedError(ApiError):
    """Too many requests with this token (429)."""


class UnavailableError(ApiError):
    """The server cannot answer now (5XX)."""


_CLASSES: dict[int, type[ApiError]] = {
    400: InvalidRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    412: ConflictError,
    413: InvalidRequestError,
    415: InvalidRequestError,
    422: InvalidRequestError,
    429: RateLimitedError,
}


def api_error(status: int, problem: Mapping[str, Any], operation: str) -> ApiError:
    """Returns the error of the class for a status."""
    kind = _CLASSES.get(status, UnavailableError if status >= 500 else ApiError)
    return kind(status, problem, operation)
