"""Connection of a client to one server: sends calls, repeats those that may be repeated, reads events."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

import httpx2

from penstock import _core, _tls
from penstock._credentials import HTTP_PORT, Address, Credentials, renewed_token, resolve
from penstock.errors import (
    ApiError,
    ConnectionFailedError,
    CredentialsError,
    ResponseError,
    UnauthorizedError,
    UnavailableError,
    WaitTimeoutError,
    api_error,
)

T = TypeVar("T")
Client = TypeVar("Client", bound="AsyncService")


class LongOperation(Protocol):
    """State of a transfer or a request."""

    @property
    def state(self) -> str: ...
    @property
    def has_ended(self) -> bool: ...


Operation = TypeVar("Operation", bound=LongOperation)

#: Servers send a comment at least every 15 s: a silent stream of events is broken after this.
EVENT_SILENCE_S = 45.0


class AsyncService:
    """A role at one address. Base of the clients of agents, controllers and collectors."""

    #: Variable with the default address.
    _variable: str | None = None

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        fingerprint: str | None = None,
        state: str | Path | None = None,
        timeout: float = 30.0,
        retry: _core.Retry | None = None,
    ) -> None:
        """Finds the server and its credentials; does not connect yet.

        `address` is `HOST`, `HOST:PORT` or a URL. Token and fingerprint are those of `penstock login` unless given.
        `state` is the directory of these logins. `timeout` in seconds bounds connecting and each wait for bytes.
        """
        if address is None and self._variable is not None:
            address = os.environ.get(self._variable)
        text = (address or "127.0.0.1").rstrip("/")
        scheme, _, rest = text.rpartition("://")
        if scheme not in ("", "http", "https"):
            raise CredentialsError(f"'{address}' is no address of an HTTP API: give HOST:PORT")
        self.address = Address.parse(rest, HTTP_PORT)
        credentials = resolve(self.address, token=token, fingerprint=fingerprint, state=state)
        self._given = {"token": token, "fingerprint": fingerprint, "state": state}
        self.url = self._url(scheme, credentials)
        self._timeout = timeout
        self._retry = retry or _core.Retry()
        headers = {"accept": "application/json, application/problem+json"}
        if credentials.token:
            headers["authorization"] = f"Bearer {credentials.token}"
        self._credentials = credentials
        self._http = httpx2.AsyncClient(
            base_url=self.url,
            headers=headers,
            verify=self._context(credentials),
            timeout=timeout,
            trust_env=False,
            follow_redirects=False,
        )

    def _url(self, scheme: str, credentials: Credentials) -> str:
        if not scheme:
            scheme = "http" if self.address.is_loopback() else "https"
        if scheme == "http" and not self.address.is_loopback():
            raise CredentialsError(f"{self.address}: plain HTTP is for this machine only: use https")
        if scheme == "https" and credentials.fingerprint is None:
            raise CredentialsError(
                f"no certificate of {self.address} is known: log in first "
                f"(penstock login {self.address} --token ... --fingerprint ...), or give fingerprint="
            )
        return f"{scheme}://{self.address}"

    def _context(self, credentials: Credentials) -> Any:
        if credentials.fingerprint is None or self.url.startswith("http:"):
            return False
        return _tls.pinned_context(credentials.fingerprint, credentials.certificate, credentials.key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.address)!r})"

    async def __aenter__(self: Client) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def _call(
        self,
        method: str,
        template: str,
        parse: Callable[[Any], T],
        *,
        path: Mapping[str, str | int] | None = None,
        query: Mapping[str, _core.QueryValue] | None = None,
        body: Any = None,
        repeatable: bool | None = None,
    ) -> T:
        """Sends a call and returns its parsed response."""
        call = _core.build(method, template, parse, path=path, query=query, body=body, repeatable=repeatable)
        failures = 0
        while True:
            wait_s = None
            try:
                return await self._send(call)
            except UnauthorizedError:
                if not self._renew_token():
                    raise
                continue
            except (ApiError, ConnectionFailedError) as error:
                status = error.status if isinstance(error, ApiError) else None
                was_sent = not isinstance(error.__cause__, (httpx2.ConnectError, httpx2.ConnectTimeout))
                after_s = error.retry_after_s if isinstance(error, ApiError) else None
                if _core.may_repeat(call, status, was_sent):
                    wait_s = self._retry.delay(failures, after_s)
                if wait_s is None:
                    raise
            failures += 1
            await asyncio.sleep(wait_s)

    def _renew_token(self) -> bool:
        """Looks for a stored token that is newer than the one in use; true where there is one."""
        token = renewed_token(self.address, self._credentials, self._given)
        if token is None:
            return False
        self._credentials = replace(self._credentials, token=token)
        self._http.headers["authorization"] = f"Bearer {token}"
        return True

    async def _send(self, call: _core.Call[T]) -> T:
        content = call.content()
        headers = {} if content is None else {"content-type": "application/json"}
        request = self._http.build_request(call.method, call.path, params=call.query, content=content, headers=headers)
        try:
            response = await self._http.send(request, stream=True)
            try:
                received = bytearray()
                async for chunk in response.aiter_bytes():
                    received += chunk
                    if len(received) > _core.RESPONSE_BYTES_MAX:
                        raise ResponseError(f"{call.name}: the response has over {_core.RESPONSE_BYTES_MAX} bytes")
            finally:
                await response.aclose()
        except httpx2.TransportError as error:
            raise self._connection_failure(error) from error
        try:
            return _core.parse_response(call, response.status_code, bytes(received))
        except ApiError as error:
            error.retry_after_s = _core.retry_after(response.headers.get("retry-after"))
            raise

    def _connection_failure(self, error: httpx2.TransportError) -> Exception:
        mismatch = _tls.mismatch(error, str(self.address))
        if mismatch is not None:
            return mismatch
        reason = str(error) or type(error).__name__
        return ConnectionFailedError(
            f"{self.address}: {reason}: check that a server runs there (penstock serve) and the port"
        )

    async def _events(
        self,
        template: str,
        *,
        query: Mapping[str, _core.QueryValue],
        last_id: str | None = None,
    ) -> AsyncGenerator[_core.ServerEvent, None]:
        """Yields server-sent events for ever; reconnects with `Last-Event-ID` where a connection ends.

        Raises the error of the server where it refuses, and that of the connection where the client's retries
        are used up without an event in between.
        """
        decoder = _core.EventDecoder()
        decoder.last_id = last_id
        failures = 0
        while True:
            failure: Exception | None = None
            try:
                async with aclosing(self._connected_events(template, query, decoder)) as events:
                    async for event in events:
                        failures = 0
                        yield event
            except UnauthorizedError:
                if not self._renew_token():
                    raise
                continue
            except UnavailableError as error:
                failure = error
            except httpx2.TransportError as error:
                failure = self._connection_failure(error)
                if not isinstance(failure, ConnectionFailedError):
                    raise failure from error
            wait_s = self._retry.delay(failures)
            if wait_s is None:
                raise failure or ConnectionFailedError(f"{self.address}: the stream of events ends at once")
            failures += 1
            await asyncio.sleep(max(wait_s, decoder.retry_s or 0.0))

    async def _ended(
        self,
        name: str,
        read: Callable[[], Awaitable[Operation]],
        interval_s: float,
        timeout: float | None,
        progress: Callable[[Operation], Any] | None,
    ) -> Operation:
        """Polls an operation until it has ended; calls `progress` with each new state of it.

        Once it has been read, a restart of the server does not end the wait.
        """
        end = None if timeout is None else time.monotonic() + timeout
        outage = _core.Outage(self._retry.outage_s)
        last = None
        while True:
            try:
                operation = await read()
            except (ConnectionFailedError, UnavailableError) as error:
                now = time.monotonic()
                if last is None or outage.is_over_limit(now):
                    raise
                if end is not None and now >= end:
                    raise WaitTimeoutError(f"{name}: no answer after {timeout} s") from error
            else:
                outage.end()
                if progress is not None and operation != last:
                    progress(operation)
                last = operation
                if operation.has_ended:
                    return operation
                if end is not None and time.monotonic() >= end:
                    raise WaitTimeoutError(f"{name} is {operation.state} after {timeout} s")
            await asyncio.sleep(interval_s)

    async def _connected_events(
        self, template: str, query: Mapping[str, _core.QueryValue], decoder: _core.EventDecoder
    ) -> AsyncGenerator[_core.ServerEvent, None]:
        """Yields the events of one connection."""
        decoder.reset()
        headers = {"accept": "text/event-stream"}
        if decoder.last_id is not None:
            headers["last-event-id"] = decoder.last_id
        call = _core.build("GET", template, dict, query=query)
        timeout = httpx2.Timeout(self._timeout, read=EVENT_SILENCE_S)
        async with self._http.stream("GET", call.path, params=call.query, headers=headers, timeout=timeout) as response:
            if response.status_code != 200:
                content = await response.aread()
                raise api_error(response.status_code, _core.problem_of(content), call.name)
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise ResponseError(f"{call.name}: the response is no stream of events: check the port")
            async for chunk in response.aiter_bytes():
                for event in decoder.feed(chunk):
                    yield event
