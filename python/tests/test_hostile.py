"""Servers that are none of ours: no wrong bytes, no endless reads, no token to the wrong place."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Agent, PenstockError, Retry
from penstock.fsspec import PenstockFileSystem

Start = Callable[[bytes], str]


@pytest.fixture
def server() -> Iterator[tuple[Start, list[bytes]]]:
    """Starts servers that give one answer to every request; collects the requests."""
    listeners: list[socket.socket] = []
    requests: list[bytes] = []

    def start(answer: bytes) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve() -> None:
            while True:
                try:
                    connection, _peer = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        requests.append(connection.recv(65_536))
                        connection.sendall(answer)
                    except OSError:
                        pass

        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start, requests
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


RETRY = Retry(attempts=2, first_s=0.001)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 999999999999\r\n\r\nx",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\n\r\nabc",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\n\r\nabcdef",
        b"HTTP/1.1 206 Partial Content\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 99999999\r\n\r\n",
        b"HTTP/1.1 307 Go\r\nContent-Length: 0\r\nLocation: ftp://127.0.0.1/f\r\n\r\n",
        b"HTTP/1.1 307 Go\r\nContent-Length: 0\r\nLocation: /data/f\r\n\r\n",
        b"X" * 200_000,
    ],
)
def test_malformed_reads_fail(server: tuple[Start, list[bytes]], answer: bytes) -> None:
    start, _requests = server
    fs = PenstockFileSystem("127.0.0.1", gateway=start(answer), token="secret", retry=RETRY, timeout=5, mover="never")
    with pytest.raises((PenstockError, OSError)):
        fs.cat_file("/data/f", 0, 10)


def test_redirects_carry_no_token(server: tuple[Start, list[bytes]]) -> None:
    start, requests = server
    other = start(b"HTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\n\r\nabc")
    answer = f"HTTP/1.1 307 Go\r\nContent-Length: 0\r\nLocation: {other}/data/f\r\n\r\n".encode()
    fs = PenstockFileSystem("127.0.0.1", gateway=start(answer), token="secret", retry=RETRY, mover="never")
    with pytest.raises(PenstockError, match="without TLS"):
        fs.cat_file("/data/f", 0, 10)
    assert len(requests) == 1
    assert b"Bearer secret" in requests[0]


@pytest.mark.parametrize("name", ["../../out", "a/..", "%2e%2e/out", "..%2F..%2Fout", "a/out", "../other"])
def test_listed_names_stay_in_the_directory(server: tuple[Start, list[bytes]], tmp_path: Path, name: str) -> None:
    entry = "<D:response><D:href>{}</D:href><D:propstat><D:prop>{}</D:prop></D:propstat></D:response>"
    directory = entry.format("/data/d/", "<D:resourcetype><D:collection/></D:resourcetype>")
    file = entry.format(f"/data/d/{name}", "<D:getcontentlength>0</D:getcontentlength>")
    body = f'<D:multistatus xmlns:D="DAV:">{directory}{file}</D:multistatus>'.encode()
    head = f"HTTP/1.1 207 Multi-Status\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    start, _requests = server
    fs = PenstockFileSystem(
        "127.0.0.1", gateway=start(head.encode() + body), token="secret", retry=RETRY, mover="never"
    )
    with pytest.raises(PenstockError, match="not in the directory"):
        fs.get("/data/d/", str(tmp_path / "in" / "deep") + "/", recursive=True)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: http://127.0.0.1:1/\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
    ],
)
def test_malformed_answers_fail(server: tuple[Start, list[bytes]], answer: bytes) -> None:
    start, _requests = server
    with Agent(start(answer), token="secret", retry=RETRY, timeout=5) as agent:
        with pytest.raises(PenstockError):
            agent.info()
        with pytest.raises(PenstockError):
            next(agent.events())
