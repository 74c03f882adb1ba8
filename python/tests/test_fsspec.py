"""The file system `penstock://`: suites of fsspec, and its own promises."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import os
import pickle
import threading
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.tests import abstract

import daemons
from penstock import CertificateMismatchError, ConnectionFailedError, CredentialsError
from penstock import fsspec as penstock_fsspec
from penstock._blocks import ParallelBlocks
from penstock._webdav import parse_listing, quoted
from penstock.errors import ResponseError
from penstock.fsspec import PenstockFileSystem


def filesystem(daemon: daemons.Daemon, scheme: str = "http", **options: Any) -> PenstockFileSystem:
    settings = {"token": daemon.token, "fingerprint": daemon.fingerprint, "mover": "never", **options}
    return PenstockFileSystem(daemon.listen, gateway=daemon.webdav(scheme), **settings)


@pytest.fixture
def fs(shared_agent: daemons.Daemon) -> PenstockFileSystem:
    return filesystem(shared_agent)


@pytest.fixture
def root(shared_agent: daemons.Daemon, request: pytest.FixtureRequest) -> str:
    """A directory of the test's own, as the file system names it."""
    name = request.node.name.replace("[", "-").replace("]", "").replace("/", "-")
    (shared_agent.directory / "data" / name).mkdir()
    return f"/data/{name}"


@pytest.fixture
def stored(shared_agent: daemons.Daemon, root: str) -> Path:
    """The same directory in the agent's own file system."""
    return shared_agent.directory / root.lstrip("/")


class PenstockFixtures(abstract.AbstractFixtures):
    """Gives the suites of fsspec this file system, over TLS."""

    @pytest.fixture
    def fs(self, shared_agent: daemons.Daemon) -> PenstockFileSystem:
        return filesystem(shared_agent, "https")

    @pytest.fixture
    def fs_path(self, fs: PenstockFileSystem) -> Any:
        path = "/data/abstract"
        fs.makedirs(path)
        yield path
        fs.rm(path, recursive=True)

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def local_fs(self) -> LocalFileSystem:
        return LocalFileSystem(auto_mkdir=True)


class TestCopy(PenstockFixtures, abstract.AbstractCopyTests):
    pass


class TestGet(PenstockFixtures, abstract.AbstractGetTests):
    pass


class TestPut(PenstockFixtures, abstract.AbstractPutTests):
    pass


class TestOpen(PenstockFixtures, abstract.AbstractOpenTests):
    pass


class TestPipe(PenstockFixtures, abstract.AbstractPipeTests):
    pass


def test_urls_are_those_of_the_command() -> None:
    assert PenstockFileSystem._strip_protocol("penstock://dtn1:8620/data/x/") == "/data/x"
    assert PenstockFileSystem._strip_protocol("penstock://dtn1") == "/"
    assert PenstockFileSystem._get_kwargs_from_urls("penstock://dtn1:8620/data") == {"host": "dtn1:8620"}
    assert quoted("/a b#?%é/") == "/a%20b%23%3F%25%C3%A9/"


def test_names_survive(fs: PenstockFileSystem, root: str, stored: Path) -> None:
    names = ["plain", "a b", "100%", "50%25", "q?x=1", "h#1", "ü-é", "semi;colon", "plus+", "&amp;<x>", "'q\""]
    for name in names:
        fs.pipe_file(f"{root}/{name}", name.encode())
    assert sorted(os.listdir(stored)) == sorted(names)
    assert sorted(fs.ls(root, detail=False)) == sorted(f"{root}/{name}" for name in names)
    for name in names:
        assert fs.cat_file(f"{root}/{name}") == name.encode()
        assert fs.info(f"{root}/{name}")["name"] == f"{root}/{name}"
        if "?" not in name:
            fs.mv(f"{root}/{name}", f"{root}/moved {name}")
            fs.mv(f"{root}/moved {name}", f"{root}/{name}")
        fs.rm_file(f"{root}/{name}")
    assert os.listdir(stored) == []


def test_odd_names_are_read_and_listed(fs: PenstockFileSystem, root: str, stored: Path) -> None:
    names = ["a;", ";", "a;b;", "new\nline", " lead", "trail ", "*", "[x]", "~", "a\\b", "|", "...", "x" * 255]
    names += [os.fsdecode(b"not utf-8 \xff\xfe")]
    for name in names:
        (stored / name).write_bytes(b"of " + os.fsencode(name))
        (stored / (name.rstrip(";") or "n")).touch()
    for name in names:
        expected = (stored / name).read_bytes()
        assert fs.cat_file(f"{root}/{name}") == expected, name
        assert fs.info(f"{root}/{name}")["size"] == len(expected), name
    assert sorted(fs.ls(root, detail=False)) == sorted(f"{root}/{name}" for name in os.listdir(stored))


def test_name_is_moved_and_no_pattern(fs: PenstockFileSystem, root: str, stored: Path) -> None:
    for name in ("run*", "run[1]", "run?"):
        for made in (name, "runs", "run1"):
            (stored / made).write_text(made)
        fs.mv(f"{root}/{name}", f"{root}/moved")
        assert (stored / "moved").read_text() == name
        assert sorted(os.listdir(stored)) == ["moved", "run1", "runs"]


def test_dots_are_resolved(fs: PenstockFileSystem, root: str, stored: Path) -> None:
    (stored / "f").write_bytes(b"x")
    for path in (f"{root}/../{root.rpartition('/')[2]}/f", f"{root}/./f", f"/../..{root}/f"):
        assert fs.cat_file(path) == b"x"
        assert fs.info(path)["name"] == f"{root}/f"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_ranges_equal_those_of_the_file(
    shared_agent: daemons.Daemon, root: str, stored: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(penstock_fsspec, "PART_BYTES", 70_001)
    fs = filesystem(shared_agent, scheme, block_size=50_000)
    content = os.urandom(1_000_000)
    (stored / "f").write_bytes(content)
    path = f"{root}/f"
    spans: list[tuple[int | None, int | None]] = [(None, None), (0, 1), (5, 5), (9, 3), (-7, None), (-9, -2), (0, -1)]
    spans += [(70_000, 500_001), (999_999, None), (1_000_000, None), (2_000_000, None), (None, 3_000_000)]
    for start, end in [*spans, (-2_000_000, None)]:
        assert fs.cat_file(path, start, end) == content[start:end], (start, end)
    parts = fs.cat_ranges([path] * 3, [0, 100, 500_000], [10, 200, 900_000])
    assert parts == [content[0:10], content[100:200], content[500_000:900_000]]
    with fs.open(path) as file:
        file.seek(123_456)
        assert file.read(200_000) == content[123_456:323_456]
        assert file.read() == content[323_456:]
        file.seek(-10, 2)
        assert file.read(100) == content[-10:]
    (stored / "empty").touch()
    assert fs.cat_file(f"{root}/empty") == b""
    assert fs.open(f"{root}/empty").read() == b""


def test_listings_have_sizes_and_times(fs: PenstockFileSystem, root: str, stored: Path) -> None:
    (stored / "d").mkdir()
    (stored / "d" / "f").write_bytes(b"12345")
    (stored / "g").write_bytes(b"1")
    assert fs.info(f"{root}/d")["type"] == "directory"
    assert fs.info(f"{root}/d/f")["size"] == 5
    assert fs.du(root) == 6
    assert fs.find(root) == [f"{root}/d/f", f"{root}/g"]
    assert fs.glob(f"{root}/*/f") == [f"{root}/d/f"]
    assert abs(fs.modified(f"{root}/g").timestamp() - (stored / "g").stat().st_mtime) < 2
    assert fs.ls("/", detail=False) == ["/data"]
    assert fs.isdir("/data")
    assert not fs.exists(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        fs.ls(f"{root}/none")
    before = fs.ukey(f"{root}/g")
    (stored / "g").write_bytes(b"22")
    assert fs.ukey(f"{root}/g") != before


def test_checksums_are_computed_by_the_agent(fs: PenstockFileSystem, root: str, stored: Path) -> None:
    import hashlib

    (stored / "f").write_bytes(b"hello")
    assert int(fs.checksum(f"{root}/f"), 16) == zlib.adler32(b"hello")
    assert fs.checksum(f"{root}/f", "md5") == __import__("base64").b64encode(hashlib.md5(b"hello").digest()).decode()
    with pytest.raises(ValueError, match="crc32c"):
        fs.checksum(f"{root}/f", "rot13")


def test_large_writes_appear_whole(fs: PenstockFileSystem, root: str, stored: Path) -> None:
    content = os.urandom(20_000_000)
    with fs.open(f"{root}/new/dir/f", "wb", block_size=1 << 20) as file:
        for at in range(0, len(content), 700_000):
            file.write(content[at : at + 700_000])
            assert not (stored / "new" / "dir" / "f").exists()
    assert (stored / "new" / "dir" / "f").read_bytes() == content
    assert os.listdir(stored / "new" / "dir") == ["f"]


def test_failed_writes_leave_nothing(fs: PenstockFileSystem, root: str, stored: Path) -> None:
    (stored / "f").write_bytes(b"before")
    with pytest.raises(ZeroDivisionError):
        with fs.open(f"{root}/f", "wb", block_size=1 << 20) as file:
            file.write(b"x" * 5_000_000)
            raise ZeroDivisionError
    daemons.eventually(lambda: os.listdir(stored) == ["f"], "the partial file is gone")
    assert (stored / "f").read_bytes() == b"before"
    with pytest.raises(ZeroDivisionError):
        with fs.transaction:
            with fs.open(f"{root}/g", "wb") as file:
                file.write(b"new")
            raise ZeroDivisionError
    assert os.listdir(stored) == ["f"]


@pytest.mark.parametrize("way", ["open", "text", "fsspec", "fsspec text", "gzip", "closing", "stack"])
def test_exception_stores_nothing_however_opened(
    shared_agent: daemons.Daemon, fs: PenstockFileSystem, root: str, stored: Path, way: str
) -> None:
    path, url = f"{root}/f", f"penstock://{shared_agent.listen}{root}/f"
    options = {"gateway": shared_agent.webdav("http"), "token": shared_agent.token, "mover": "never"}

    ways: dict[str, Callable[[], Any]] = {
        "open": lambda: fs.open(path, "wb"),
        "text": lambda: fs.open(path, "w"),
        "fsspec": lambda: fsspec.open(url, "wb", **options),
        "fsspec text": lambda: fsspec.open(url, "wt", **options),
        "gzip": lambda: fsspec.open(url, "wb", compression="gzip", **options),
        "closing": lambda: contextlib.closing(fs.open(path, "wb")),
        "stack": lambda: contextlib.ExitStack(),
    }
    part: Any = "part" if "text" in way else b"part"
    (stored / "f").write_bytes(b"before")
    with pytest.raises(ZeroDivisionError):
        with ways[way]() as file:
            if way == "stack":
                file = file.enter_context(fs.open(path, "wb"))
            file.write(part)
            raise ZeroDivisionError
    assert (stored / "f").read_bytes() == b"before"
    with ways[way]() as file:
        if way == "stack":
            file = file.enter_context(fs.open(path, "wb"))
        file.write(part)
    assert (stored / "f").read_bytes() != b"before"


def test_file_closed_by_a_handler_is_stored(fs: PenstockFileSystem, root: str, stored: Path) -> None:
    file = fs.open(f"{root}/f", "wb")
    try:
        raise KeyError
    except KeyError:
        file.write(b"without the key")
        file.close()
    assert (stored / "f").read_bytes() == b"without the key"

    class Log:
        def __enter__(self) -> None:
            self.file = fs.open(f"{root}/log", "w")

        def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
            self.file.write(repr(error))
            self.file.close()
            with fs.open(f"{root}/report", "w") as file:
                file.write(repr(error))

    @contextlib.contextmanager
    def logged() -> Iterator[Any]:
        file = fs.open(f"{root}/generated", "wb")
        try:
            yield file
        finally:
            file.write(b"the end")
            file.close()

    with pytest.raises(KeyError):
        with contextlib.ExitStack() as stack:
            stack.enter_context(Log())
            stack.enter_context(logged())
            raise KeyError("of the block")
    assert "of the block" in (stored / "log").read_text()
    assert (stored / "report").read_text() == (stored / "log").read_text()
    assert (stored / "generated").read_bytes() == b"the end"


def test_failed_opens_change_nothing(fs: PenstockFileSystem, root: str, stored: Path) -> None:
    (stored / "f").write_bytes(b"before")
    for mode in ("ab", "a", "r+b", "w+b"):
        with pytest.raises(NotImplementedError):
            fs.open(f"{root}/f", mode)
        gc.collect()
        assert (stored / "f").read_bytes() == b"before", mode


def test_rmdir_removes_nothing_unlisted(fs: PenstockFileSystem, root: str, stored: Path) -> None:
    (stored / "d").mkdir()
    (stored / "d" / "link").symlink_to("nowhere")
    assert fs.ls(f"{root}/d") == []
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir(f"{root}/d")
    (stored / "d" / "link").unlink()
    fs.rmdir(f"{root}/d")
    assert os.listdir(stored) == []


def test_directories_are_not_replaced(fs: PenstockFileSystem, root: str, stored: Path) -> None:
    (stored / "d" / "sub").mkdir(parents=True)
    (stored / "d" / "sub" / "f").write_bytes(b"kept")
    (stored / "new").write_bytes(b"new")

    def commit() -> None:
        with fs.transaction:
            with fs.open(f"{root}/d", "wb") as file:
                file.write(b"new")

    sync = penstock_fsspec.sync
    ways = [
        lambda: fs.cp_file(f"{root}/new", f"{root}/d"),
        lambda: sync(fs.loop, fs._mv_file, f"{root}/new", f"{root}/d"),
        commit,
    ]
    for replace in ways:
        with pytest.raises(IsADirectoryError):
            replace()
        assert (stored / "d" / "sub" / "f").read_bytes() == b"kept"
    assert (stored / "new").read_bytes() == b"new"


def test_transaction_survives_a_failed_file(fs: PenstockFileSystem, root: str, stored: Path) -> None:
    with fs.transaction:
        with contextlib.suppress(ZeroDivisionError):
            with fs.open(f"{root}/f", "wb") as file:
                file.write(b"part")
                raise ZeroDivisionError
        fs.pipe_file(f"{root}/g", b"x")
        with fs.open(f"{root}/h", "wb") as file:
            file.write(b"whole")
    assert sorted(os.listdir(stored)) == ["g", "h"]


def test_growing_file_is_not_sent(fs: PenstockFileSystem, root: str, stored: Path, tmp_path: Path) -> None:
    source = tmp_path / "growing"
    source.write_bytes(b"x" * (9 << 20))

    class Growing(fsspec.callbacks.Callback):
        def relative_update(self, inc: int = 1) -> None:
            with source.open("ab") as file:
                file.write(b"y")

    with pytest.raises(OSError, match="changed while it was sent"):
        fs.put_file(str(source), f"{root}/f", callback=Growing())
    daemons.eventually(lambda: os.listdir(stored) == [], "nothing is stored")


def test_transactions_commit_together(fs: PenstockFileSystem, root: str, stored: Path) -> None:
    with fs.transaction:
        for name in ("f", "g"):
            with fs.open(f"{root}/{name}", "wb") as file:
                file.write(name.encode())
        assert not {"f", "g"} & set(os.listdir(stored))
    assert sorted(os.listdir(stored)) == ["f", "g"]


def test_exclusive_creation_has_one_winner(fs: PenstockFileSystem, root: str, stored: Path) -> None:
    results: list[str] = []

    def create(index: int) -> None:
        try:
            fs.pipe_file(f"{root}/f", str(index).encode(), mode="create")
            results.append(str(index))
        except FileExistsError:
            pass

    threads = [threading.Thread(target=create, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 1
    assert (stored / "f").read_text() == results[0]


def test_replaced_files_are_not_mixed(fs: PenstockFileSystem, root: str, stored: Path) -> None:
    (stored / "f").write_bytes(b"a" * 9_000_000)
    with fs.open(f"{root}/f", block_size=1 << 20) as file:
        assert file.read(10) == b"a" * 10
        (stored / "g").write_bytes(b"b" * 9_000_000)
        os.replace(stored / "g", stored / "f")
        file.seek(8_000_000)
        with pytest.raises(OSError, match="changed while it was read"):
            file.read(10)


def test_file_written_in_place_is_no_mixture(
    shared_agent: daemons.Daemon, fs: PenstockFileSystem, root: str, stored: Path
) -> None:
    """A gateway breaks an answer off whose file changes after `If-Match` held."""
    size = 64 << 20
    (stored / "f").write_bytes(bytes(size))
    url = f"{shared_agent.webdav('http')}{root}/f"
    for demands, is_whole in ((False, True), (True, False)):
        headers = {"authorization": f"Bearer {shared_agent.token}"}
        if demands:
            headers["if-match"] = fs.info(f"{root}/f")["etag"]
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
            read = len(answer.read(1))
            with (stored / "f").open("r+b") as file:
                file.seek(size - 1)
                file.write(b"x")
            with contextlib.suppress(http.client.IncompleteRead, ConnectionError):
                read += len(answer.read())
        assert (read == size) is is_whole
        (stored / "f").write_bytes(bytes(size))


def test_errors_are_those_of_files(fs: PenstockFileSystem, root: str, stored: Path) -> None:
    (stored / "d").mkdir()
    (stored / "d" / "f").touch()
    with pytest.raises(FileNotFoundError):
        fs.cat_file(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        fs.open(f"{root}/none")
    with pytest.raises(IsADirectoryError):
        fs.open(f"{root}/d")
    with pytest.raises(IsADirectoryError):
        fs.rm(f"{root}/d")
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir(f"{root}/d")
    with pytest.raises(FileExistsError):
        fs.mkdir(f"{root}/d")
    with pytest.raises(FileExistsError):
        fs.makedirs(f"{root}/d")
    fs.makedirs(f"{root}/d", exist_ok=True)
    with pytest.raises(IsADirectoryError):
        fs.cat_file(f"{root}/d")
    with pytest.raises(IsADirectoryError):
        fs.pipe_file(f"{root}/d", b"x")
    with pytest.raises(NotADirectoryError):
        fs.pipe_file(f"{root}/d/f/g", b"x")
    with pytest.raises(FileNotFoundError, match="in no export"):
        fs.pipe_file("/elsewhere/f", b"")
    fs.rm(f"{root}/d", recursive=True)
    assert os.listdir(stored) == []


def test_tokens_and_certificates_are_checked(shared_agent: daemons.Daemon, client_state: Path) -> None:
    with pytest.raises(PermissionError, match="token"):
        filesystem(shared_agent, token="wrong-token-of-some-length").ls("/data")
    for work in (lambda fs: fs.ls("/data"), lambda fs: fs.cat_file("/data/f")):
        with pytest.raises(CertificateMismatchError):
            work(filesystem(shared_agent, "https", fingerprint="SHA256:" + "ab" * 32))
    with pytest.raises(CredentialsError, match="log in first"):
        PenstockFileSystem("192.0.2.1", token="x")
    with pytest.raises(CredentialsError, match="plain HTTP"):
        PenstockFileSystem("192.0.2.1", gateway="http://192.0.2.1:80", token="x", fingerprint=shared_agent.fingerprint)
    # The agent's own certificate names the loopback addresses, and is its own authority.
    trusted = filesystem(shared_agent, "https", authorities=str(shared_agent.state / "agent.crt"))
    assert trusted.isdir("/data")
    with pytest.raises(CertificateMismatchError):
        filesystem(shared_agent, "https", authorities=True).ls("/data")


def test_login_opens_the_gateway(shared_agent: daemons.Daemon, client_state: Path, root: str) -> None:
    words = ["login", shared_agent.listen, "--token", shared_agent.token, "--fingerprint", shared_agent.fingerprint]
    daemons.run(client_state, *words)
    url = f"penstock://{shared_agent.listen}{root}/f"
    with fsspec.open(url, "wt", gateway=shared_agent.webdav("https"), state=str(client_state)) as file:
        file.write("hello")
    with fsspec.open(url, "rt", gateway=shared_agent.webdav("https"), state=str(client_state)) as file:
        assert file.read() == "hello"


def test_dead_gateways_are_named(shared_agent: daemons.Daemon) -> None:
    import socket

    from penstock import Retry

    with socket.create_server(("127.0.0.1", 0)) as closed:
        gateway = f"http://127.0.0.1:{closed.getsockname()[1]}"
    fs = PenstockFileSystem("127.0.0.1", gateway=gateway, token="x", retry=Retry(attempts=2, first_s=0.001))
    for work in (lambda: fs.ls("/"), lambda: fs.cat_file("/f")):
        with pytest.raises(ConnectionFailedError, match="gateway="):
            work()


def test_agent_names_its_gateway(
    shared_agent: daemons.Daemon, root: str, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    from penstock import Retry

    with socket.create_server(("127.0.0.1", 0)) as closed:
        monkeypatch.setattr("penstock._webdav.GATEWAY_PORT", closed.getsockname()[1])
    monkeypatch.setattr("penstock.fsspec.HTTP_PORT", int(shared_agent.http.rpartition(":")[2]))
    monkeypatch.delenv("PENSTOCK_GATEWAY", raising=False)
    (stored / "f").write_bytes(b"abc")
    for read in ("cat_file", "info"):
        fs = PenstockFileSystem(
            shared_agent.listen,
            token=shared_agent.token,
            fingerprint=shared_agent.fingerprint,
            mover="never",
            retry=Retry(attempts=2, first_s=0.001),
            skip_instance_cache=True,
        )
        assert getattr(fs, read)(f"{root}/f")
        assert fs.gateway == shared_agent.webdav("https")


def test_reads_survive_broken_connections(shared_agent: daemons.Daemon, root: str, stored: Path) -> None:
    """Connections that break or fall silent within a response are replaced, and the bytes are right."""
    content = os.urandom(3_000_000)
    (stored / "f").write_bytes(content)
    upstream = shared_agent.webdav("http").removeprefix("http://").split(":")
    limits = [1, 500, 100_000, 2_000_000]
    silent = [200_000]

    async def main() -> tuple[str, asyncio.Server]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection(upstream[0], int(upstream[1]))

            async def forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter, limit: int) -> None:
                while limit > 0 and (part := await source.read(min(65_536, limit))):
                    limit -= len(part)
                    sink.write(part)
                    await sink.drain()
                if not is_silent:
                    sink.close()

            limit = limits.pop(0) if limits else 1 << 60
            is_silent = limit == 1 << 60 and bool(silent)
            if is_silent:
                limit = silent.pop()
            await asyncio.gather(
                forward(reader, far_writer, 1 << 60), forward(far_reader, writer, limit), return_exceptions=True
            )

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", server

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    gateway, server = asyncio.run_coroutine_threadsafe(main(), loop).result()
    try:
        fs = PenstockFileSystem(
            shared_agent.listen, gateway=gateway, token=shared_agent.token, mover="never", timeout=1.0
        )
        assert fs.cat_file(f"{root}/f") == content
        assert limits == silent == []
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.parametrize("mover", ["never", "always"])
def test_whole_files_are_copied(
    shared_agent: daemons.Daemon,
    root: str,
    stored: Path,
    tmp_path: Path,
    mover: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_BINARY", str(daemons.binary()))
    fs = filesystem(shared_agent, mover=mover)
    content = os.urandom(40_000_000)
    (tmp_path / "f").write_bytes(content)
    moved: list[int] = []
    callback = fsspec.callbacks.Callback(hooks={"moved": lambda size, value, **_: moved.append(value)})
    fs.put_file(str(tmp_path / "f"), f"{root}/deep/er/f", callback=callback)
    assert (stored / "deep" / "er" / "f").read_bytes() == content
    assert moved[-1] == len(content)
    fs.get_file(f"{root}/deep/er/f", str(tmp_path / "back" / "f"))
    assert (tmp_path / "back" / "f").read_bytes() == content
    assert os.listdir(tmp_path / "back") == ["f"]
    engines = {transfer["engine"] for transfer in _transfers(shared_agent)}
    assert mover == "never" or engines - {"http"}


@pytest.mark.parametrize("mover", ["never", "always"])
def test_other_content_of_equal_time_is_copied(
    shared_agent: daemons.Daemon,
    root: str,
    stored: Path,
    tmp_path: Path,
    mover: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_BINARY", str(daemons.binary()))
    fs = filesystem(shared_agent, mover=mover)

    def write(path: Path, content: bytes) -> None:
        path.write_bytes(content)
        os.utime(path, (1e9, 1e9))

    write(tmp_path / "new", b"new")
    write(stored / "f", b"old")
    fs.put_file(str(tmp_path / "new"), f"{root}/f")
    assert (stored / "f").read_bytes() == b"new"
    write(stored / "f", b"own")
    write(tmp_path / "new", b"new")
    fs.get_file(f"{root}/f", str(tmp_path / "new"))
    assert (tmp_path / "new").read_bytes() == b"own"
    (stored / "d").mkdir()
    with pytest.raises(IsADirectoryError):
        fs.put_file(str(tmp_path / "new"), f"{root}/d")
    with pytest.raises(IsADirectoryError):
        fs.get_file(f"{root}/f", str(tmp_path))
    assert os.listdir(stored / "d") == []


def _transfers(daemon: daemons.Daemon) -> list[dict[str, Any]]:
    import json

    done = daemons.run(daemon.state, "transfers", "--json", "--http", daemon.http)
    found: list[dict[str, Any]] = json.loads(done.stdout)["transfers"]
    return found


async def test_asynchronous_use(shared_agent: daemons.Daemon, root: str) -> None:
    fs = filesystem(shared_agent, asynchronous=True)
    await asyncio.gather(*(fs._pipe_file(f"{root}/{index}", bytes([index]) * 1000) for index in range(20)))
    read = await asyncio.gather(*(fs._cat_file(f"{root}/{index}", 0, 1) for index in range(20)))
    assert read == [bytes([index]) for index in range(20)]
    assert len(await fs._ls(root)) == 20


def test_file_systems_can_be_pickled(fs: PenstockFileSystem, root: str) -> None:
    fs.pipe_file(f"{root}/f", b"x")
    copy = pickle.loads(pickle.dumps(fs))
    assert copy.cat_file(f"{root}/f") == b"x"


@pytest.mark.parametrize("content", [b"", b"<html>", b"\x00", b"{}"])
def test_other_listings_are_refused(content: bytes) -> None:
    with pytest.raises(ResponseError):
        parse_listing(content)


def test_blocks_are_fetched_once_and_ahead() -> None:
    from concurrent.futures import Future

    content = bytes(range(256)) * 40
    fetched: list[tuple[int, int]] = []

    def fetch(start: int, end: int) -> Future[bytes]:
        fetched.append((start, end))
        future: Future[bytes] = Future()
        future.set_result(content[start:end])
        return future

    blocks = ParallelBlocks(fetch, len(content), block_bytes=100, ahead=2, kept=4)
    assert blocks.read(0, 10) == content[:10]
    assert fetched == [(0, 100), (100, 200), (200, 300)]
    assert blocks.read(10, 150) == content[10:150]
    assert fetched[3:] == [(300, 400)]
    assert blocks.read(5000, 5010) == content[5000:5010]
    assert fetched[4:] == [(5000, 5100)], "a random read fetches nothing ahead"
    assert blocks.read(0, len(content)) == content
    assert blocks.read(len(content), len(content) + 5) == b""


def test_failed_blocks_are_fetched_again() -> None:
    from concurrent.futures import Future

    results: list[Any] = [OSError("broken"), b"x" * 10]

    def fetch(start: int, end: int) -> Future[bytes]:
        future: Future[bytes] = Future()
        result = results.pop(0)
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
        return future

    blocks = ParallelBlocks(fetch, 10, block_bytes=10, ahead=0, kept=2)
    with pytest.raises(OSError, match="broken"):
        blocks.read(0, 10)
    assert blocks.read(0, 10) == b"x" * 10
