"""File system `penstock://HOST/path` for fsspec, over the gateway of an agent.

    import fsspec
    with fsspec.open("penstock://dtn1.example.org/store/cms/f.csv") as file: ...

Reads are ranges, several at once; an open file keeps a cache of blocks. A file is written under its name in one step,
or not at all, and its checksum is compared. Whole large files go by `penstock cp` where that program is installed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import ssl
import threading
import uuid
import weakref
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar
from urllib.parse import urlsplit

import httpx2
from fsspec.asyn import AsyncFileSystem, sync
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.core import has_magic
from fsspec.utils import tokenize

from penstock import _mover, _tls, _webdav
from penstock._async.agent import AsyncAgent
from penstock._core import Retry
from penstock._credentials import HTTP_PORT, MOVER_PORT, Address, renewed_token, resolve
from penstock._data import BrokenConnectionError, Buffer, NoLengthError, RangeReader, RangeResponse
from penstock._open_file import PenstockFile, TextFile
from penstock.errors import (
    ChecksumMismatchError,
    ConnectionFailedError,
    CredentialsError,
    PenstockError,
    ResponseError,
)

#: Bytes of one request of a large read.
PART_BYTES = 8 << 20

#: Bytes of one request where a file is fetched: they are written while the cache of the processor has them.
FETCH_BYTES = 2 << 20

#: Bytes of the first request for a file whose size is not known.
FIRST_BYTES = 256 << 10

#: Smallest file that goes by `penstock cp`: it takes a tenth of a second to start.
MOVER_BYTES_MIN = 256 << 20

#: Headers of a `DELETE` that removes no members of a directory, also none that came after a look at it.
_NOT_RECURSIVE = {"depth": "0"}

#: Statuses after which a read or another repeatable request is sent again.
_RETRIED = frozenset({429, 502, 503, 504})


@dataclass
class _Session:
    """Connections of one event loop."""

    http: httpx2.AsyncClient
    reader: RangeReader
    #: Held while the agent is asked where its gateway is.
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


def _close_session(loop: asyncio.AbstractEventLoop, session: _Session) -> None:
    """Closes the connections of a file system that is no longer in use."""
    if loop.is_running():
        try:
            asyncio.run_coroutine_threadsafe(session.http.aclose(), loop)
            loop.call_soon_threadsafe(session.reader.close)
        except RuntimeError:
            pass


class PenstockFileSystem(AsyncFileSystem):  # type: ignore[misc]
    """Files of an agent.

    `host` is that of `penstock cp`: `HOST` or `HOST:PORT` of the mover. The gateway is where `gateway` or
    `PENSTOCK_GATEWAY` says, else at `https://HOST:8443`, or where none answers there, at the port that the agent's API
    at `HOST:8621` names. Its certificate is the pinned one of the agent's login, or with `authorities` (True for the
    system's, else a PEM file or directory) one for its name.

    `mover` is `auto` (large files by `penstock cp` where it is installed), `never` or `always`. `verify` compares the
    checksum of uploads. `auto_mkdir` makes missing directories of written files.
    """

    protocol: ClassVar[str] = "penstock"
    root_marker: ClassVar[str] = "/"
    cachable: ClassVar[bool] = True

    def __init__(
        self,
        host: str | None = None,
        gateway: str | None = None,
        token: str | None = None,
        fingerprint: str | None = None,
        authorities: str | bool | None = None,
        state: str | None = None,
        mover: str = "auto",
        verify: bool = True,
        auto_mkdir: bool = True,
        connections: int = 8,
        block_size: int = 4 << 20,
        blocks_ahead: int = 4,
        blocks_kept: int = 16,
        timeout: float = 60.0,
        retry: Retry | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not host:
            raise CredentialsError("no host is given: write penstock://HOST/path")
        if mover not in ("auto", "never", "always"):
            raise ValueError(f"mover is '{mover}': use auto, never or always")
        self.host = host
        self.mover_address = Address.parse(host, MOVER_PORT)
        bare = f"[{self.mover_address.host}]" if ":" in self.mover_address.host else self.mover_address.host
        gateway = gateway or os.environ.get("PENSTOCK_GATEWAY")
        self._asks_agent = not gateway
        gateway = gateway or f"https://{bare}:{_webdav.GATEWAY_PORT}"
        self.gateway = gateway.rstrip("/")
        url = urlsplit(self.gateway)
        if url.scheme not in ("http", "https") or not url.hostname or url.path:
            raise CredentialsError(f"'{gateway}' is no gateway: write it like https://dtn1.example.org:8443")
        at = Address(url.hostname, url.port or (443 if url.scheme == "https" else 80))
        if url.scheme == "http" and not at.is_loopback():
            raise CredentialsError(f"{self.gateway}: plain HTTP is for this machine only: use https")
        self._given = {"token": token, "fingerprint": fingerprint, "state": state}
        self._credentials = resolve(self.mover_address, **self._given, mover=True)
        self._authorities = authorities
        if url.scheme == "https" and authorities is None and self._credentials.fingerprint is None:
            raise CredentialsError(
                f"no certificate of {self.mover_address} is known: log in first "
                f"(penstock login {self.mover_address} --token ... --fingerprint ...), or give authorities=True"
            )
        self.mover = mover
        self.verify = verify
        self.auto_mkdir = auto_mkdir
        self.connections = connections
        self.block_size = block_size
        self.blocks_ahead = blocks_ahead
        self.blocks_kept = blocks_kept
        self.timeout = timeout
        self._retry = retry or Retry()
        self._sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Session] = weakref.WeakKeyDictionary()
        self._sessions_lock = threading.Lock()

    def _renew_token(self) -> bool:
        """Looks for a stored token that is newer than the one in use; true where there is one."""
        token = renewed_token(self.mover_address, self._credentials, self._given, mover=True)
        if token is None:
            return False
        self._credentials = replace(self._credentials, token=token)
        with self._sessions_lock:
            self._sessions.clear()
        return True

    # Names.

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        text = os.fspath(path) if isinstance(path, os.PathLike) else str(path)
        if text.startswith("penstock://"):
            _host, slash, rest = text.removeprefix("penstock://").partition("/")
            text = slash + rest
        text = "/" + text.strip("/")
        # Clients of HTTP would resolve such segments in some requests, and gateways refuse them in the others.
        return posixpath.normpath(text) if {"", ".", ".."} & set(text.split("/")[1:]) else text

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        host, _, _rest = path.removeprefix("penstock://").partition("/")
        return {"host": host} if path.startswith("penstock://") and host else {}

    def unstrip_protocol(self, name: str) -> str:
        """Returns the URL of a path."""
        return name if name.startswith("penstock://") else f"penstock://{self.host}{self._strip_protocol(name)}"

    @property
    def fsid(self) -> str:
        """Name of this file system: its host."""
        return f"penstock_{self.host}"

    # Requests.

    def _session(self) -> _Session:
        """Returns the connections of the running loop."""
        loop = asyncio.get_running_loop()
        with self._sessions_lock:
            session = self._sessions.get(loop)
            if session is None:
                session = self._sessions[loop] = self._connect()
                # The process closes them at its end.
                weakref.finalize(self, _close_session, loop, session).atexit = False
        return session

    def _connect(self) -> _Session:
        known = self._credentials
        context: ssl.SSLContext | None = None
        others: ssl.SSLContext | None = None
        if self._authorities not in (None, False):
            others = _tls.authorities_context(self._authorities)
            if known.certificate is not None:
                others.load_cert_chain(known.certificate, known.key)
        if self.gateway.startswith("https:"):
            context = others
            if context is None:
                assert known.fingerprint is not None
                context = _tls.pinned_context(known.fingerprint, known.certificate, known.key)
        authorization = f"Bearer {known.token}" if known.token else None
        http = httpx2.AsyncClient(
            base_url=self.gateway,
            headers={} if authorization is None else {"authorization": authorization},
            verify=context if context is not None else False,
            timeout=self.timeout,
            trust_env=False,
            limits=httpx2.Limits(max_connections=self.connections * 2, max_keepalive_connections=self.connections),
        )
        reader = RangeReader(
            self.gateway,
            authorization=authorization,
            context=context,
            others=others,
            connections=self.connections,
            timeout_s=self.timeout,
        )
        return _Session(http, reader)

    async def _is_elsewhere(self, tried: str) -> bool:
        """Asks the agent's API once for the port of its gateway; returns True if it is another than the one tried."""
        async with self._session().asking:
            if self.gateway != tried:
                return True
            if not self._asks_agent:
                return False
            self._asks_agent = False
            known, host = self._credentials, self.mover_address.host
            fingerprint = None if known.fingerprint is None else f"SHA256:{known.fingerprint.hex()}"
            api = AsyncAgent(
                str(Address(host, HTTP_PORT)),
                token=known.token,
                fingerprint=fingerprint,
                timeout=self.timeout,
                retry=Retry(attempts=1),
            )
            try:
                async with api:
                    urls = [urlsplit(url) for url in (await api.info()).webdav or ()]
            except PenstockError:
                return False
            ports = [url.port for url in urls if url.scheme == "https"]
            if not ports:
                return False
            self.gateway = f"https://{Address(host, ports[0] or 443)}"
            with self._sessions_lock:
                self._sessions.clear()
            return self.gateway != tried

    async def _send(
        self,
        method: str,
        path: str,
        *,
        headers: dict[str, str] | None = None,
        content: Any = None,
        accept: tuple[int, ...] = (),
        repeatable: bool = True,
    ) -> httpx2.Response:
        """Sends a request; returns a successful response or one with a status of `accept`."""
        failures = 0
        while True:
            tried = self.gateway
            wait_s = self._retry.delay(failures) if repeatable else None
            try:
                response = await self._session().http.request(
                    method, _webdav.quoted(path), headers=headers, content=content
                )
            except httpx2.TransportError as error:
                found = _tls.mismatch(error, self.gateway)
                if found is not None:
                    raise found from error
                if isinstance(error, httpx2.ConnectError) and await self._is_elsewhere(tried):
                    continue
                if wait_s is None:
                    raise ConnectionFailedError(
                        f"{self.gateway}: {error or type(error).__name__}: check the address of the gateway (gateway=)"
                    ) from error
            else:
                is_gone = method == "DELETE" and response.status_code == 404
                # The answer to the first attempt may be lost.
                if response.is_success or response.status_code in accept or (is_gone and failures):
                    return response
                # Content that comes in parts cannot be sent again.
                if response.status_code == 401 and isinstance(content, (bytes, NoneType)) and self._renew_token():
                    continue
                if wait_s is None or response.status_code not in _RETRIED:
                    raise _webdav.os_error(response.status_code, response.content, path)
            failures += 1
            await asyncio.sleep(wait_s)

    async def _read_range(
        self, path: str, target: memoryview, byte_range: str, tag: str | None = None
    ) -> RangeResponse:
        """Reads a range into a buffer; repeats it where the connection breaks. 416 is returned, not raised."""
        failures = 0
        headers = {"If-Match": tag} if tag else {}
        while True:
            tried = self.gateway
            wait_s = self._retry.delay(failures)
            try:
                response = await self._session().reader.read(target, _webdav.quoted(path), byte_range, headers)
            except NoLengthError as error:
                if await self._isdir(path):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) from error
                raise ConnectionFailedError(
                    f"{self.gateway}: {error}: check the address of the gateway (gateway=)"
                ) from error
            except (BrokenConnectionError, ConnectionError, TimeoutError, asyncio.TimeoutError) as error:
                if isinstance(error, ConnectionRefusedError) and await self._is_elsewhere(tried):
                    continue
                if wait_s is None:
                    raise ConnectionFailedError(
                        f"{self.gateway}: {error or type(error).__name__}: check the address of the gateway (gateway=)"
                    ) from error
            else:
                if response.status in (200, 206, 416):
                    return response
                if response.status == 412:
                    raise OSError(errno.ESTALE, "the file changed while it was read: open it again", path)
                if response.status == 401 and self._renew_token():
                    continue
                if wait_s is None or response.status not in _RETRIED:
                    raise _webdav.os_error(response.status, response.content, path)
            failures += 1
            await asyncio.sleep(wait_s)

    # Listings.

    async def _info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        response = await self._send("PROPFIND", path, headers={"depth": "0"})
        entries = _webdav.parse_listing(response.content)
        if not entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return {**entries[0], "name": path}

    async def _ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        response = await self._send("PROPFIND", path, headers={"depth": "1"})
        entries = _webdav.parse_listing(response.content)
        if entries and entries[0]["type"] == "directory":
            # The first one is the directory itself.
            entries = [entry for entry in entries[1:] if entry["name"] != path]
            # A recursive `get` would write other names of a hostile server outside of its target.
            wrong = [entry["name"] for entry in entries if not _is_in(entry["name"], path)]
            if wrong:
                raise ResponseError(f"{path}: the listing has {wrong[0]!r}, which is not in the directory")
        return entries if detail else [entry["name"] for entry in entries]

    async def _exists(self, path: str, **kwargs: Any) -> bool:
        try:
            await self._info(path)
        except FileNotFoundError:
            return False
        return True

    async def _modified(self, path: str) -> datetime:
        modified = (await self._info(path)).get("mtime")
        if not isinstance(modified, datetime):
            raise NotImplementedError(f"{path} has no time of modification")
        return modified

    def modified(self, path: str) -> datetime:
        """Returns the time of modification."""
        return sync(self.loop, self._modified, path)  # type: ignore[no-any-return]

    def ukey(self, path: str) -> str:
        """Returns a value that changes with the file: its ETag."""
        info = self.info(path)
        return str(info.get("etag") or tokenize(info["size"], info.get("mtime")))

    async def _checksum(self, path: str, algorithm: str = "adler32") -> str:
        path = self._strip_protocol(path)
        response = await self._send("HEAD", path, headers={"want-digest": algorithm})
        value = _webdav.parse_digest(response.headers.get("digest")).get(algorithm.lower())
        if value is None:
            raise ValueError(f"{path}: the gateway gives no {algorithm}: use adler32, crc32c, md5 or sha-256")
        return value

    def checksum(self, path: str, algorithm: str = "adler32") -> str:
        """Returns the checksum of a file, computed by the agent (adler32, crc32c, md5, sha-256; RFC 3230)."""
        return sync(self.loop, self._checksum, path, algorithm)  # type: ignore[no-any-return]

    # Reading.

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        path = self._strip_protocol(path)
        tag = kwargs.get("etag")
        if end is not None and (end < 0 or (start is not None and start < 0)):
            size = (await self._info(path))["size"]
            start = max(size + start, 0) if start is not None and start < 0 else start
            end = size + end if end < 0 else end
        if start is not None and start < 0:
            tail = Buffer(-start)
            response = await self._read_range(path, tail.view, f"bytes={start}", tag)
            return tail.content(response.received)
        start = start or 0
        if end is not None and end <= start:
            return b""
        first_end = start + FIRST_BYTES if end is None else min(end, start + PART_BYTES)
        first = Buffer(first_end - start)
        response = await self._read_range(path, first.view, f"bytes={start}-{first_end - 1}", tag)
        span = _webdav.parse_content_range(response.headers.get("content-range"))
        total = span[2] if response.status == 206 and span is not None else start + response.received
        stop = total if end is None else min(end, total)
        if response.status == 416 or stop - start <= response.received:
            return first.content(response.received)
        whole = Buffer(stop - start)
        whole.view[: response.received] = first.view[: response.received]
        await self._read_parts(path, start, whole.view, response.received, tag or response.headers.get("etag"))
        return whole.content(stop - start)

    async def _read_parts(self, path: str, base: int, view: memoryview, begin: int, tag: str | None) -> None:
        """Reads the parts of a file from `base` + `begin` on into a buffer, several at once."""

        async def part(at: int) -> None:
            target = view[at : at + PART_BYTES]
            last = base + at + len(target) - 1
            response = await self._read_range(path, target, f"bytes={base + at}-{last}", tag)
            if response.received != len(target):
                raise OSError(errno.ESTALE, "the file changed while it was read: open it again", path)

        await _all([part(at) for at in range(begin, len(view), PART_BYTES)])

    async def _get_file(self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, **kwargs: Any) -> None:
        path = self._strip_protocol(rpath)
        info = await self._info(path)
        if info["type"] == "directory":
            os.makedirs(lpath, exist_ok=True)
            return
        callback.set_size(info["size"])
        if hasattr(lpath, "write"):
            lpath.write(await self._cat_file(path))
            return
        target = Path(os.fspath(lpath))
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
        binary = self._mover_for(path, info["size"])
        if binary is not None:
            await _mover.copy(
                binary, self._mover_url(path), str(target.absolute()), str(self.mover_address), self._credentials
            )
            callback.relative_update(info["size"])
            return
        partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.part")
        try:
            with partial.open("wb") as file:
                await self._read_to_file(path, file.fileno(), info, callback)
            os.replace(partial, target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    async def _read_to_file(self, path: str, descriptor: int, info: dict[str, Any], callback: Any) -> None:
        size, tag = info["size"], info.get("etag")
        waiting = iter(range(0, size, FETCH_BYTES))

        async def work() -> None:
            buffer = memoryview(bytearray(min(FETCH_BYTES, size)))
            for at in waiting:
                target = buffer[: min(FETCH_BYTES, size - at)]
                response = await self._read_range(path, target, f"bytes={at}-{at + len(target) - 1}", tag)
                if response.received != len(target):
                    raise OSError(errno.ESTALE, "the file changed while it was read: open it again", path)
                await asyncio.to_thread(_write_at, descriptor, target, at)
                callback.relative_update(len(target))

        await _all([work() for _worker in range(min(self.connections, -(-size // FETCH_BYTES)))])

    # Writing.

    async def _put_content(
        self, path: str, content: bytes | memoryview | AsyncIterator[bytes], *, create: bool, size: int | None = None
    ) -> str | None:
        """Sends the content of a file; returns the adler32 that the agent computed."""
        headers = {"want-digest": "adler32", "content-type": "application/octet-stream"}
        if create:
            headers["if-none-match"] = "*"
        if size is not None:
            headers["content-length"] = str(size)
        is_whole = isinstance(content, (bytes, memoryview))
        if isinstance(content, memoryview):
            content = bytes(content)
        # A repeated upload of a whole file has the same effect, but a lost answer to `create` looks like a conflict.
        response = await self._send(
            "PUT", path, headers=headers, content=content, accept=(409,), repeatable=is_whole and not create
        )
        if response.status_code == 409:
            if not (self.auto_mkdir and is_whole):
                raise _webdav.os_error(409, response.content, path)
            if await self._isdir(path):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            await self._make_parent(path)
            response = await self._send("PUT", path, headers=headers, content=content, repeatable=not create)
        return _webdav.parse_digest(response.headers.get("digest")).get("adler32")

    async def _make_parent(self, path: str) -> None:
        """Makes the missing directories above a path. Concurrent requests may make them at the same time."""
        parent = self._parent(path)
        try:
            if (await self._info(parent))["type"] != "directory":
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), parent)
        except FileNotFoundError:
            await self._makedirs(parent, exist_ok=True)

    def _compare(self, path: str, stored: str | None, sent: int) -> None:
        if self.verify and stored is not None and int(stored, 16) != sent:
            raise ChecksumMismatchError(
                errno.EIO, f"{path}: the agent stored other bytes (adler32 {stored}) than were sent ({sent:08x})"
            )

    async def _pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        content = value if isinstance(value, bytes) else bytes(value)
        stored = await self._put_content(path, content, create=mode == "create")
        self._compare(path, stored, zlib.adler32(content) if self.verify else 0)

    async def _put_file(
        self, lpath: Any, rpath: str, mode: str = "overwrite", callback: Any = DEFAULT_CALLBACK, **kwargs: Any
    ) -> None:
        path = self._strip_protocol(rpath)
        if os.path.isdir(lpath):
            await self._makedirs(path, exist_ok=True)
            return
        size = os.path.getsize(lpath)
        callback.set_size(size)
        binary = None if mode == "create" else self._mover_for(path, size)
        if binary is not None:
            if await self._isdir(path):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            await _mover.copy(
                binary, os.path.abspath(lpath), self._mover_url(path), str(self.mover_address), self._credentials
            )
            callback.relative_update(size)
            return
        if size <= PART_BYTES:
            with open(lpath, "rb") as file:
                await self._pipe_file(path, file.read(), mode=mode)
            callback.relative_update(size)
            return
        if self.auto_mkdir:
            await self._make_parent(path)
        digest = 1

        async def parts() -> AsyncIterator[bytes]:
            nonlocal digest
            with open(lpath, "rb") as file:
                before, sent = _state_of(file.fileno()), 0
                while sent < size:
                    part = await asyncio.to_thread(file.read, min(4 << 20, size - sent))
                    sent += len(part)
                    # Before the last part: the gateway stores nothing of an upload that is not whole.
                    if not part or (sent == size and _state_of(file.fileno()) != before):
                        raise OSError(errno.ESTALE, "the file changed while it was sent: send it again", str(lpath))
                    if self.verify:
                        digest = zlib.adler32(part, digest)
                    yield part
                    callback.relative_update(len(part))

        stored = await self._put_content(path, parts(), create=mode == "create", size=size)
        self._compare(path, stored, digest)

    def _mover_for(self, path: str, size: int) -> str | None:
        """Returns the program that copies a file, where one should."""
        if self.mover == "never" or (self.mover == "auto" and (size < MOVER_BYTES_MIN or set("?#") & set(path))):
            return None
        binary = _mover.find_binary()
        if binary is not None and self._credentials.fingerprint is not None:
            return binary
        if self.mover == "always":
            raise FileNotFoundError(
                errno.ENOENT, "mover='always' needs the program penstock (PATH or PENSTOCK_BINARY) and a login", path
            )
        return None

    def _mover_url(self, path: str) -> str:
        return f"penstock://{self.mover_address}{path}"

    # Directories, names.

    async def _mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        response = await self._send("MKCOL", path, accept=(409,), repeatable=False)
        if response.status_code == 409:
            if not create_parents:
                raise _webdav.os_error(409, response.content, path)
            await self._makedirs(self._parent(path), exist_ok=True)
            await self._send("MKCOL", path, repeatable=False)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        try:
            await self._mkdir(path, create_parents=True)
        except (FileExistsError, PermissionError):
            # Exports and the collections above them cannot be made.
            if not exist_ok or not await self._isdir(path):
                raise

    async def _rm_file(self, path: str, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if (await self._info(path))["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, "is a directory: remove it with recursive=True", path)
        await self._send("DELETE", path, headers=_NOT_RECURSIVE)

    async def _rm(
        self,
        path: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        if not recursive or maxdepth is not None:
            await super()._rm(path, recursive=recursive, maxdepth=maxdepth, batch_size=batch_size)
            return
        paths = await self._expand_path(path, recursive=False)
        for one in paths:
            await self._send("DELETE", one)

    async def _rmdir(self, path: str) -> None:
        path = self._strip_protocol(path)
        if (await self._info(path))["type"] != "directory":
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        # For gateways that do not know this use of `Depth`.
        is_empty = not await self._ls(path, detail=False)
        if not is_empty or (await self._send("DELETE", path, headers=_NOT_RECURSIVE, accept=(409,))).status_code == 409:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)

    def rmdir(self, path: str) -> None:
        """Removes an empty directory."""
        sync(self.loop, self._rmdir, path)

    async def _transfer_name(self, method: str, path1: str, path2: str, *, overwrite: bool = True) -> None:
        """Sends COPY or MOVE within the agent; makes the directory of the destination where it is missing.

        Replaces a file, and no directory.
        """
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        # With `Overwrite: T` a gateway would also replace a directory with all that is in it.
        headers = {"destination": self.gateway + _webdav.quoted(target)} | ({} if overwrite else {"overwrite": "F"})
        response = await self._send(method, source, headers=headers, accept=(409,), repeatable=False)
        if response.status_code == 409:
            if await self._isdir(target):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
            if not self.auto_mkdir:
                raise _webdav.os_error(409, response.content, target)
            await self._make_parent(target)
            await self._send(method, source, headers=headers, repeatable=False)

    async def _cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        if (await self._info(path1))["type"] == "directory":
            await self._makedirs(path2, exist_ok=True)
            return
        await self._transfer_name("COPY", path1, path2)

    async def _mv_file(self, path1: str, path2: str) -> None:
        await self._transfer_name("MOVE", path1, path2)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Renames a file, or a tree where nothing has the new name, in one step; else copies and removes."""
        is_name = isinstance(path1, str) and isinstance(path2, str) and maxdepth is None
        # A name is no pattern where a file has it.
        if is_name and (not has_magic(path1) or self.exists(path1)):
            info = self.info(path1)
            target = self._strip_protocol(path2)
            is_inside = path2.endswith("/") or self.isdir(target)
            if is_inside and not path1.endswith("/"):
                target = target.rstrip("/") + "/" + info["name"].rsplit("/", 1)[-1]
            if info["type"] == "file":
                sync(self.loop, self._mv_file, path1, target)
                return
            if recursive and not self.exists(target):
                sync(self.loop, self._transfer_name, "MOVE", path1, target, overwrite=False)
                return
        super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)

    # Open files.

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Opens a file: see `open` of fsspec."""
        text = {}
        if "b" not in mode:
            text = {name: kwargs.pop(name) for name in ("encoding", "errors", "newline") if name in kwargs}
        binary = mode if "b" in mode else mode.replace("t", "") + "b"
        file = super().open(path, binary, block_size, cache_options, compression, **kwargs)
        return file if "b" in mode else TextFile(file, **text)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> PenstockFile:
        if mode == "xb" and self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return PenstockFile(
            self,
            path,
            mode=mode,
            block_size=block_size or self.block_size,
            autocommit=autocommit,
            cache_options=cache_options,
            **kwargs,
        )


def _is_in(name: str, directory: str) -> bool:
    """True for the path of a member of a directory."""
    parent, _, last = name.rpartition("/")
    return (parent or "/") == directory and last not in ("", ".", "..")


async def _all(work: list[Any]) -> None:
    """Runs coroutines at once; where one fails, ends the others and raises its error."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _state_of(descriptor: int) -> tuple[int, int]:
    """Returns size and time of modification of an open file."""
    stat = os.fstat(descriptor)
    return stat.st_size, stat.st_mtime_ns


def _write_at(descriptor: int, content: memoryview, offset: int) -> None:
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written
