"""Cache of the blocks of an open file, which fetches several at once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future


class ParallelBlocks:
    """Blocks of one file, the least recently used of which are dropped.

    A read that needs several blocks fetches them at the same time. A sequential read fetches `ahead` further blocks
    before they are needed. `fetch(start, end)` begins to read a range and returns its future.
    """

    def __init__(
        self,
        fetch: Callable[[int, int], Future[bytes]],
        size: int,
        *,
        block_bytes: int,
        ahead: int,
        kept: int,
    ) -> None:
        self._fetch = fetch
        self._size = size
        self._block_bytes = block_bytes
        self._ahead = ahead
        self._kept = max(kept, ahead + 2)
        self._blocks: OrderedDict[int, Future[bytes]] = OrderedDict()
        self._next: int | None = 0
        self.fetched_bytes = 0
        """Bytes of all ranges that were begun."""

    def read(self, start: int, end: int) -> bytes:
        """Returns the bytes from `start` to `end`, fewer at the end of the file."""
        end = min(end, self._size)
        if start >= end:
            return b""
        first, last = start // self._block_bytes, (end - 1) // self._block_bytes
        is_sequential = self._next is not None and start == self._next
        self._next = end
        futures = [self._block(index) for index in range(first, last + 1)]
        if is_sequential:
            for index in range(last + 1, last + 1 + self._ahead):
                if index * self._block_bytes < self._size:
                    self._block(index)
        parts = []
        try:
            for index, future in zip(range(first, last + 1), futures, strict=True):
                content = future.result()
                base = index * self._block_bytes
                parts.append(content[max(start - base, 0) : end - base])
        except BaseException:
            # A failed block is fetched again by the next read.
            for index in range(first, last + 1):
                self._blocks.pop(index, None)
            raise
        self._evict(last - first + 1)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Drops all blocks and gives up those that are on their way."""
        for future in self._blocks.values():
            future.cancel()
        self._blocks.clear()

    def _block(self, index: int) -> Future[bytes]:
        future = self._blocks.get(index)
        if future is None:
            start = index * self._block_bytes
            end = min(start + self._block_bytes, self._size)
            self.fetched_bytes += end - start
            future = self._blocks[index] = self._fetch(start, end)
        self._blocks.move_to_end(index)
        return future

    def _evict(self, needed: int) -> None:
        while len(self._blocks) > max(self._kept, needed):
            _index, future = self._blocks.popitem(last=False)
            future.cancel()
