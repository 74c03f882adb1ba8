"""Connections that read bytes of files into given buffers.

A general client of HTTP copies each byte several times in Python. Here the kernel (or OpenSSL) writes the body of a
response straight into the buffer of the caller. Only what the gateway sends is understood: one response with
`Content-Length` for one GET, over HTTP/1.1.
"""

from __future__ import annotations

import asyncio
import io
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

from penstock._tls import mismatch
from penstock.errors import ResponseError

#: Longest head of a response, and longest body of a refusal, in bytes.
HEAD_BYTES_MAX = 64 << 10
REFUSAL_BYTES_MAX = 1 << 20

#: Most redirects of one read.
REDIRECTS_MAX = 3


class Buffer:
    """Memory that becomes a `bytes` object without a copy.

    `BytesIO` gives a view of the object that it returns in the end; a bytearray would be copied, and a large copy costs
    as much as the read.
    """

    def __init__(self, size: int) -> None:
        self._io = io.BytesIO()
        if size:
            self._io.seek(size - 1)
            self._io.write(b"\0")
        self.view = self._io.getbuffer()

    def content(self, size: int) -> bytes:
        """Returns the first `size` bytes. The view is gone."""
        self.view.release()
        try:
            self._io.truncate(size)
        except BufferError:
            # A connection that failed still has a part of it.
            return bytes(self._io.getbuffer()[:size])
        return self._io.getvalue()


class BrokenConnectionError(OSError):
    """The connection ended within a response; the read may be repeated."""


class NoLengthError(BrokenConnectionError):
    """The response states no length: that of a gateway is the listing of a directory."""


@dataclass
class RangeResponse:
    """Response to the read of a range."""

    status: int
    headers: Mapping[str, str]
    """Names are in lower case."""
    received: int
    """Bytes in the buffer, for status 200 and 206."""
    content: bytes = b""
    """Body of any other status."""


class _Reader(asyncio.BufferedProtocol):
    """One connection: a request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.lost = False
        self.is_reusable = False
        self._head = bytearray()
        self._scratch = memoryview(bytearray(HEAD_BYTES_MAX))
        self._target: memoryview | None = None
        self._status = 0
        self._headers: dict[str, str] = {}
        self._expected = 0
        self._received = 0
        self._refusal: memoryview | None = None
        self._done: asyncio.Future[RangeResponse] | None = None
        self._in_body = False
        self.updates = 0
        """Number of times that bytes came: where it stands still, the server is silent."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def start(self, request: bytes, target: memoryview) -> asyncio.Future[RangeResponse]:
        """Sends a request whose body goes to `target`."""
        assert self.transport is not None
        self._done = asyncio.get_running_loop().create_future()
        self._head.clear()
        self._target, self._refusal = target, None
        self._received, self._in_body, self.is_reusable = 0, False, False
        if self.lost:
            self._fail("the server closed the connection")
        else:
            self.transport.write(request)
        return self._done

    def get_buffer(self, sizehint: int) -> memoryview:
        if not self._in_body:
            return self._scratch
        body = self._refusal if self._refusal is not None else self._target
        if body is None:
            return self._scratch
        return body[self._received : self._expected] or self._scratch[:1]

    def buffer_updated(self, nbytes: int) -> None:
        self.updates += 1
        if self._done is None or self._done.done():
            # Bytes that no request asked for.
            self.close()
            return
        if self._in_body:
            self._received += nbytes
            self._finish_if_whole()
            return
        self._head += self._scratch[:nbytes]
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > HEAD_BYTES_MAX:
                self._fail("the head of the response is too long")
            return
        rest = bytes(self._head[end + 4 :])
        try:
            self._read_head(bytes(self._head[:end]))
        except NoLengthError as error:
            self._fail(error)
            return
        except ValueError as error:
            self._fail(f"the response is not of a gateway ({error})")
            return
        if len(rest) > self._expected:
            self._fail("the response is longer than announced")
            return
        body = self._refusal if self._refusal is not None else self._target
        assert body is not None
        body[: len(rest)] = rest
        self._received, self._in_body = len(rest), True
        self._finish_if_whole()

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status, *_reason = first.split(" ", 2)
        if not version.startswith("HTTP/1."):
            raise ValueError(first[:40])
        self._status = int(status)
        pairs = (line.partition(":") for line in lines)
        self._headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if "transfer-encoding" in self._headers:
            raise NoLengthError("the response is not of a gateway (it states no length)")
        self._expected = int(self._headers.get("content-length", "0"))
        assert self._target is not None
        if self._status in (200, 206):
            if not 0 <= self._expected <= len(self._target):
                raise ValueError(f"{self._expected} bytes for a range of {len(self._target)}")
        elif 0 <= self._expected <= REFUSAL_BYTES_MAX:
            self._refusal = memoryview(bytearray(self._expected))
        else:
            raise ValueError("a refusal of many bytes")

    def _finish_if_whole(self) -> None:
        if self._received < self._expected:
            return
        assert self._done is not None
        self.is_reusable = self._headers.get("connection", "").lower() != "close"
        content = b"" if self._refusal is None else bytes(self._refusal)
        received = self._received if self._refusal is None else 0
        self._target = self._refusal = None
        self._in_body = False
        self._done.set_result(RangeResponse(self._status, self._headers, received, content))

    def _fail(self, reason: str | BrokenConnectionError) -> None:
        self._target = None
        self.close()
        if self._done is not None and not self._done.done():
            error = BrokenConnectionError(reason) if isinstance(reason, str) else reason
            self._done.set_exception(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self._fail(str(error) if error else "the server closed the connection within a response")

    def close(self) -> None:
        """Closes the connection."""
        self.is_reusable = False
        self._target = None
        if self.transport is not None:
            self.transport.abort()


def _redirected(url: str, location: str) -> str:
    """Returns the URL to which a header `Location` leads.

    >>> _redirected("https://a:1/data/f", "/data/a;"), _redirected("https://a:1/data/f", "https://b/data/a;")
    ('https://a:1/data/a;', 'https://b/data/a;')
    """
    if urlsplit(location).scheme:
        return location
    if location.startswith("/") and not location.startswith("//"):
        # urljoin drops a semicolon at the end.
        return urlsplit(url)._replace(path="", query="", fragment="").geturl() + location
    return urljoin(url, location)


class RangeReader:
    """Pool of connections to a gateway, and to the agents to which a head node redirects.

    `context` is for `origin` alone; other hosts are checked by `others`.
    """

    def __init__(
        self,
        origin: str,
        *,
        authorization: str | None,
        context: ssl.SSLContext | None,
        others: ssl.SSLContext | None,
        connections: int,
        timeout_s: float,
    ) -> None:
        self._origin = urlsplit(origin)
        self._authorization = authorization
        self._context, self._others = context, others
        self._free: dict[tuple[str, str], deque[_Reader]] = {}
        self._limit = asyncio.Semaphore(connections)
        self._timeout_s = timeout_s

    async def read(
        self, target: memoryview, quoted_path: str, byte_range: str, headers: Mapping[str, str] | None = None
    ) -> RangeResponse:
        """Reads a range such as `bytes=0-99` into `target`, which has room for it. Follows redirects."""
        url = self._origin.geturl() + quoted_path
        async with self._limit:
            for _redirect in range(REDIRECTS_MAX + 1):
                response = await self._read_once(target, urlsplit(url), byte_range, headers or {})
                if response.status not in (301, 302, 307, 308) or "location" not in response.headers:
                    return response
                url = _redirected(url, response.headers["location"])
            raise ResponseError(f"{quoted_path}: more than {REDIRECTS_MAX} redirects")

    async def _read_once(
        self, target: memoryview, url: SplitResult, byte_range: str, headers: Mapping[str, str]
    ) -> RangeResponse:
        is_origin = (url.scheme, url.netloc) == (self._origin.scheme, self._origin.netloc)
        path = url.path + (f"?{url.query}" if url.query else "")
        lines = [f"GET {path} HTTP/1.1", f"Host: {url.netloc}", f"Range: {byte_range}", "Accept: */*"]
        if is_origin and self._authorization:
            lines.append(f"Authorization: {self._authorization}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        request = ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")
        free = self._free.setdefault((url.scheme, url.netloc), deque())
        while True:
            was_free = bool(free)
            reader = free.pop() if was_free else await self._connect(url, is_origin)
            try:
                response = await self._response(reader, reader.start(request, target))
            except BrokenConnectionError:
                # The server may close a connection that waits.
                if was_free:
                    continue
                raise
            except BaseException:
                reader.close()
                raise
            if reader.is_reusable:
                free.append(reader)
            else:
                reader.close()
            return response

    async def _response(self, reader: _Reader, response: asyncio.Future[RangeResponse]) -> RangeResponse:
        """Waits for a response as long as bytes come."""
        while True:
            before = reader.updates
            await asyncio.wait({response}, timeout=self._timeout_s)
            if response.done():
                return response.result()
            if reader.updates == before:
                raise TimeoutError(f"no byte came for {self._timeout_s} s")

    async def _connect(self, url: SplitResult, is_origin: bool) -> _Reader:
        context = None
        if url.scheme == "https":
            context = self._context if is_origin else self._others
            if context is None:
                raise ResponseError(
                    f"{url.netloc}: the gateway redirects to an agent whose certificate is not known: give authorities="
                )
        elif not is_origin or url.scheme != "http":
            raise ResponseError(f"{url.geturl()}: the gateway redirects to a URL without TLS")
        port = url.port or (443 if url.scheme == "https" else 80)
        loop = asyncio.get_running_loop()
        connecting = loop.create_connection(_Reader, url.hostname or "", port, ssl=context)
        try:
            _transport, reader = await asyncio.wait_for(connecting, self._timeout_s)
        except (OSError, TimeoutError) as error:
            raise mismatch(error, url.netloc) or error from error
        return reader

    def close(self) -> None:
        """Closes the connections that wait."""
        for readers in self._free.values():
            for reader in readers:
                reader.close()
            readers.clear()
