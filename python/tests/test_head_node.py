"""Reads and writes through a head node, which redirects to the agent that moves the data."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import daemons
from penstock import Agent
from penstock.errors import ResponseError
from penstock.fsspec import PenstockFileSystem

TOKEN = "the-token-of-alice-at-the-head-node"

EXPORT = '[[export]]\nname = "/store"\npath = "{data}"\nmode = "read-write"\nwho = ["alice"]\n'


@dataclass
class HeadSite:
    head: daemons.Daemon
    agent: daemons.Daemon
    authority: Path
    data: Path


def certificates(directory: Path) -> None:
    """Makes an authority, and a host certificate for localhost."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)

    (directory / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "ca.key",
            "-out", "ca.pem", "-subj", "/CN=test authority", "-days", "2")  # fmt: skip
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "host.key", "-out",
            "host.csr", "-subj", "/CN=localhost")  # fmt: skip
    openssl("x509", "-req", "-in", "host.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out",
            "host.pem", "-days", "2", "-extfile", "names")  # fmt: skip


def start(directory: Path, data: Path, gateway: str, tokens: str) -> daemons.Daemon:
    directory.mkdir()
    for name, text in (("redirect.key", "f00dfeed" * 4), ("tokens", tokens)):
        (directory / name).write_text(text)
        (directory / name).chmod(0o600)
    host = f'certificate = "{directory.parent}/host.pem"\nkey = "{directory.parent}/host.key"\n'
    host += f'authorities = "{directory.parent}/ca.pem"\n'
    config = f'tokens = "tokens"\n[gateway]\n{host}{gateway}{EXPORT.format(data=data)}'
    return daemons.Daemon(directory, config=config).start()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadSite]:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    base = tmp_path_factory.mktemp("head")
    certificates(base)
    (base / "data").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        # The configuration names the port: another process may take it meanwhile, and then the test fails.
        port = free.getsockname()[1]
    url = f"https://localhost:{port}"
    agent = start(
        base / "dtn2",
        base / "data",
        f'listen = ["127.0.0.1:{port}"]\n[gateway.redirected]\nkey = "redirect.key"\nurl = "{url}"\n',
        "bob another-token-of-bob\n",
    )
    try:
        gateway = f'listen = ["127.0.0.1:0"]\n[gateway.head]\nkey = "redirect.key"\nagents = ["{url}"]\n'
        head = start(base / "dtn1", base / "data", gateway, f"alice {TOKEN}\n")
        try:
            yield HeadSite(head, agent, base / "ca.pem", base / "data")
        finally:
            head.stop()
    finally:
        agent.stop()


def filesystem(site: HeadSite, **options: object) -> PenstockFileSystem:
    gateway = site.head.webdav("https").replace("127.0.0.1", "localhost")
    return PenstockFileSystem(site.head.listen, gateway=gateway, token=TOKEN, mover="never", **options)


def test_reads_are_redirected(site: HeadSite) -> None:
    content = os.urandom(20_000_000)
    (site.data / "f").write_bytes(content)
    fs = filesystem(site, authorities=str(site.authority))
    with Agent(site.agent.http, token=site.agent.token) as agent:

        def moved() -> int:
            assert fs.cat_file("/store/f") == content
            return sum(transfer.moved_bytes for transfer in agent.transfers())

        # The head node gives clients to an agent once it has answered.
        daemons.eventually(lambda: moved() >= len(content), "the agent moves the file")
    with fs.open("/store/f") as file:
        file.seek(7_000_000)
        assert file.read(100) == content[7_000_000:7_000_100]


def test_writes_reach_the_shared_directory(site: HeadSite) -> None:
    fs = filesystem(site, authorities=str(site.authority))
    content = os.urandom(9_000_000)
    with fs.open("/store/new/dir/g", "wb", block_size=1 << 20) as file:
        file.write(content)
    assert (site.data / "new" / "dir" / "g").read_bytes() == content
    fs.mv("/store/new/dir/g", "/store/h")
    assert fs.ls("/store/new/dir") == []
    assert int(fs.checksum("/store/h"), 16)


def test_pinned_clients_name_the_remedy(site: HeadSite) -> None:
    """Only authorities tell which other agents are to be trusted."""
    import hashlib
    import ssl

    host = (site.head.directory.parent / "host.pem").read_text()
    fingerprint = "SHA256:" + hashlib.sha256(ssl.PEM_cert_to_DER_cert(host)).hexdigest()
    fs = filesystem(site, fingerprint=fingerprint)
    assert fs.isdir("/store")
    (site.data / "p").write_bytes(b"p")

    def refused() -> bool:
        try:
            fs.cat_file("/store/p")
        except ResponseError as error:
            return "authorities=" in str(error)
        return False

    daemons.eventually(refused, "a redirect is refused")
