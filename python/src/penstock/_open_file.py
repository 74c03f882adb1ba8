"""Open files of the file system: blocks for reading, one upload for writing."""

from __future__ import annotations

import asyncio
import errno
import inspect
import io
import os
import sys
import uuid
import zlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from types import FrameType
from typing import TYPE_CHECKING, Any

from fsspec.asyn import sync
from fsspec.spec import AbstractBufferedFile

from penstock._blocks import ParallelBlocks

if TYPE_CHECKING:
    from penstock.fsspec import PenstockFileSystem


#: Modules whose methods `__exit__` close files, and do nothing else.
_CLOSING_MODULES = frozenset({"contextlib", "fsspec.core", "pandas.io.common", __name__})


def _closes_after_failure() -> bool:
    """True where the innermost `__exit__` on the stack is that of a wrapper of files, and was called with an exception.

    A class or generator of the user's that closes a file has its reason: its file is stored.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "__exit__":
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            return False
        frame = frame.f_back
    if frame is None or frame.f_globals.get("__name__") not in _CLOSING_MODULES:
        return False
    arguments = inspect.getargvalues(frame)
    values = [arguments.locals.get(name) for name in arguments.args]
    values += arguments.locals.get(arguments.varargs or "", ())
    return any(isinstance(value, BaseException) for value in values)


class TextFile(io.TextIOWrapper):
    """Text of an open file, which learns of an exception within `with`."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Closes the file; after an exception nothing of it is stored."""
        self.close()


class PenstockFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file that is read by blocks, or written in one upload that takes its name at the end.

    An exception that ends a `with` block stores nothing. Libraries, and `fsspec.open` itself, wrap the file and only
    close it then, as they do after the last byte: the method `__exit__` that does so tells the two apart.

    `cache_type` selects one of the caches of fsspec in place of the blocks.
    """

    def __init__(
        self, fs: PenstockFileSystem, path: str, mode: str = "rb", cache_type: str | None = None, **kwargs: Any
    ) -> None:
        self.closed: bool
        self._upload: _Upload | None = None
        self._digest = 1
        self._blocks: ParallelBlocks | None = None
        self._is_discarded = False
        # A file that is refused here must not be closed as one that is written: that would empty it.
        if mode == "ab":
            raise NotImplementedError("a gateway appends to no file: write it anew")
        if mode not in ("rb", "wb", "xb"):
            raise NotImplementedError(f"mode {mode!r} is not supported: read with rb, write with wb or xb")
        super().__init__(fs, path, mode=mode, cache_type=cache_type or "none", **kwargs)
        self._target = self.path
        if mode == "rb":
            if self.details["type"] == "directory":
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if cache_type is not None:
                return
            self._blocks = ParallelBlocks(
                self._begin_read,
                self.size,
                block_bytes=self.blocksize,
                ahead=fs.blocks_ahead,
                kept=fs.blocks_kept,
            )
        elif not self.autocommit:
            parent, _, name = self.path.rpartition("/")
            self._target = f"{parent}/.{name}.{uuid.uuid4().hex[:12]}.tmp"

    # Reading.

    def _begin_read(self, start: int, end: int) -> Future[bytes]:
        reading = self.fs._cat_file(self.path, start, end, etag=self.details.get("etag"))
        return asyncio.run_coroutine_threadsafe(reading, self.fs.loop)

    def _fetch_range(self, start: int, end: int) -> bytes:
        if self._blocks is None:
            return self._begin_read(start, end).result()
        return self._blocks.read(start, end)

    # Writing.

    def _run(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return sync(self.fs.loop, function, *arguments, **named)

    def _initiate_upload(self) -> None:
        """Begins the upload with the first block; a file of one block is sent whole instead."""

    def _upload_chunk(self, final: bool = False) -> bool:
        content = self.buffer.getvalue()
        create = self.mode == "xb" and self.autocommit
        if final and self._upload is None:
            self._run(self.fs._pipe_file, self._target, content, mode="create" if create else "overwrite")
            return True
        if self.fs.verify:
            self._digest = zlib.adler32(content, self._digest)
        if self._upload is None:
            if self.fs.auto_mkdir:
                self._run(self.fs._make_parent, self._target)
            self._upload = self._run(_begin_upload, self.fs, self._target, create)
        assert self._upload is not None
        self._run(self._upload.send, content)
        if final:
            stored = self._run(self._upload.finish)
            self.fs._compare(self._target, stored, self._digest)
        return True

    def commit(self) -> None:
        """Gives a file of a transaction its name."""
        if self._target != self.path and not self._is_discarded:
            self._run(self.fs._transfer_name, "MOVE", self._target, self.path, overwrite=self.mode != "xb")

    def discard(self) -> None:
        """Removes a file of a transaction, or ends an upload."""
        self._is_discarded = True
        if self._upload is not None:
            self._run(self._upload.abort)
        if self._target != self.path and self._run(self.fs._exists, self._target):
            self._run(self.fs._send, "DELETE", self._target)

    def close(self) -> None:
        """Closes the file; a written one takes its name."""
        if self.closed:
            return
        if self.mode != "rb" and _closes_after_failure():
            self.closed = True
            self.discard()
            return
        try:
            super().close()
        finally:
            self.closed = True
            if self._blocks is not None:
                self._blocks.close()
            if self._upload is not None:
                self._run(self._upload.abort)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Closes the file; after an exception nothing of it is stored."""
        self.close()


async def _begin_upload(fs: PenstockFileSystem, path: str, create: bool) -> _Upload:
    return _Upload(fs, path, create)


class _Upload:
    """An upload whose content comes in parts."""

    def __init__(self, fs: PenstockFileSystem, path: str, create: bool) -> None:
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=2)
        self._task = asyncio.ensure_future(fs._put_content(path, self._content(), create=create))

    async def _content(self) -> AsyncIterator[bytes]:
        while (part := await self._parts.get()) is not None:
            yield part

    async def send(self, content: bytes | None) -> None:
        """Sends the next part; raises the error of an upload that has ended."""
        if content == b"":
            return
        putting = asyncio.ensure_future(self._parts.put(content))
        await asyncio.wait({putting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not putting.done():
            putting.cancel()
            # Ended before its end: only with an error.
            self._task.result()
            raise OSError(errno.EIO, "the gateway answered before the end of the upload")

    async def finish(self) -> str | None:
        """Ends the content; returns the checksum that the agent computed."""
        await self.send(None)
        return await self._task

    async def abort(self) -> None:
        """Ends an upload that is not whole: the agent stores nothing of it."""
        if not self._task.done():
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
