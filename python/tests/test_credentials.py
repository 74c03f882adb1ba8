"""Addresses, logins and pinned certificates, beside the command that writes them."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import daemons
from penstock import (
    Agent,
    AsyncAgent,
    CertificateMismatchError,
    Controller,
    CredentialsError,
    NotFoundError,
    UnauthorizedError,
)
from penstock._credentials import Address, LoginStore, bearer_token, state_directory
from penstock._tls import format_fingerprint
from penstock.fsspec import PenstockFileSystem


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[daemons.Daemon]:
    """An agent whose HTTP API speaks TLS."""
    directory = tmp_path_factory.mktemp("secured") / "dtn"
    directory.mkdir()
    daemon = daemons.Daemon(directory, options=("--root", str(directory)), http_option="0.0.0.0:0")
    daemon.start()
    yield daemon
    daemon.stop()


def port(daemon: daemons.Daemon) -> int:
    return int(daemon.http.rpartition(":")[2])


@pytest.mark.parametrize(
    ("text", "one"),
    [
        ("DTN1.Example.org", "dtn1.example.org:8621"),
        ("[0:0::1]:99", "[::1]:99"),
        ("::1", "[::1]:8621"),
        ("10.0.0.1", "10.0.0.1:8621"),
    ],
)
def test_addresses_have_one_spelling(text: str, one: str) -> None:
    assert str(Address.parse(text, 8621)) == one


@pytest.mark.parametrize("text", ["", "a:b", "a:0", "a:70000", "http://x", "a/b", "[::1"])
def test_malformed_addresses_are_refused(text: str) -> None:
    with pytest.raises(CredentialsError):
        Address.parse(text, 8621)


def test_state_directory_follows_the_command() -> None:
    assert state_directory({"PENSTOCK_STATE": "/s", "HOME": "/h"}) == Path("/s")
    expected = "/var/lib/penstock" if os.geteuid() == 0 else "/h/.local/state/penstock"
    assert state_directory({"HOME": "/h"}) == Path(expected)


def test_login_of_the_command_is_found(secured: daemons.Daemon, client_state: Path) -> None:
    mover = f"127.0.0.1:{secured.listen.rpartition(':')[2]}"
    daemons.run(client_state, "login", mover, "--token", secured.token, "--fingerprint", secured.fingerprint)
    # A login at the mover's port opens the API, at any spelling of its address.
    for host in ("127.0.0.1", "localhost"):
        with Agent(f"https://{host}:{port(secured)}") as agent:
            assert agent.info().fingerprint == secured.fingerprint
    found = LoginStore(client_state).find(Address.parse(mover, 8620), mover=True)
    assert found is not None
    assert found.token == secured.token
    assert found.fingerprint is not None
    assert format_fingerprint(found.fingerprint) == secured.fingerprint
    assert secured.token not in repr(found)


def test_certificate_identifies_the_server(secured: daemons.Daemon, client_state: Path) -> None:
    login = (
        f'[[host]]\naddress = "dtn1.invalid:8620"\ntoken = "{secured.token}"\nfingerprint = "{secured.fingerprint}"\n'
    )
    hosts = client_state / "hosts.toml"
    hosts.touch(mode=0o600)
    hosts.write_text(login)
    with Agent(f"https://127.0.0.1:{port(secured)}") as agent:
        assert agent.transfers() == ()
    hosts.write_text(login.replace(secured.fingerprint, "SHA256:" + "00" * 32))
    with pytest.raises(CredentialsError, match="log in first"):
        Agent(f"https://127.0.0.1:{port(secured)}")


def test_state_of_the_daemon_needs_no_login(secured: daemons.Daemon) -> None:
    with Agent(f"https://127.0.0.1:{port(secured)}", state=secured.state) as agent:
        assert agent.info().version


async def test_async_client_pins_too(secured: daemons.Daemon) -> None:
    url = f"https://127.0.0.1:{port(secured)}"
    async with AsyncAgent(url, token=secured.token, fingerprint=secured.fingerprint) as agent:
        assert (await agent.info()).version
    wrong = "SHA256:" + "ab" * 32
    async with AsyncAgent(url, token=secured.token, fingerprint=wrong) as agent:
        with pytest.raises(CertificateMismatchError, match="log in again"):
            await agent.info()


def test_other_certificates_get_no_token(secured: daemons.Daemon) -> None:
    """A server with another certificate, which completes its side of the handshake, receives no byte."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(secured.state / "agent.crt", secured.state / "agent.key")
    received = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _peer = listener.accept()
            with connection, context.wrap_socket(connection, server_side=True) as stream:
                try:
                    received.append(stream.recv(4096))
                except OSError:
                    received.append(b"")

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with Agent(url, token="a-secret", fingerprint="SHA256:" + "00" * 32) as agent:
            with pytest.raises(CertificateMismatchError, match="another certificate"):
                agent.info()
        thread.join()
    assert received == [b""]


def test_unknown_servers_are_refused(client_state: Path) -> None:
    with pytest.raises(CredentialsError, match="log in first"):
        Agent("192.0.2.1", token="a-token")
    with pytest.raises(CredentialsError, match="plain HTTP"):
        Agent("http://192.0.2.1")


def test_readable_logins_are_refused(client_state: Path) -> None:
    hosts = client_state / "hosts.toml"
    hosts.write_text("")
    hosts.chmod(0o644)
    with pytest.raises(CredentialsError, match="chmod 600"):
        Agent("192.0.2.1")
    hosts.chmod(0o600)
    hosts.write_text('[[host]]\naddress = "secret-token')
    with pytest.raises(CredentialsError, match="log in again") as caught:
        Agent("192.0.2.1")
    assert "secret" not in str(caught.value)


def test_controller_address_comes_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CONTROLLER", "127.0.0.1:9000")
    assert str(Controller().address) == "127.0.0.1:9000"
    monkeypatch.delenv("PENSTOCK_CONTROLLER")
    assert str(Controller().address) == "127.0.0.1:8621"


def test_bearer_tokens_are_discovered(tmp_path: Path) -> None:
    file = tmp_path / f"bt_u{os.geteuid()}"
    file.write_text(" from-runtime \n")
    assert bearer_token({"BEARER_TOKEN": "given"}) == "given"
    assert bearer_token({"XDG_RUNTIME_DIR": str(tmp_path)}) == "from-runtime"
    assert bearer_token({"BEARER_TOKEN_FILE": str(file)}) == "from-runtime"
    with pytest.raises(CredentialsError, match="BEARER_TOKEN"):
        bearer_token({"BEARER_TOKEN_FILE": str(tmp_path / "none")})


def test_renewed_login_is_found(shared_agent: daemons.Daemon, client_state: Path) -> None:
    def login() -> str:
        scopes = ["--scope", "read", "--scope", "storage.read:/data", "--scope", "storage.modify:/data"]
        created = json.loads(daemons.run(shared_agent.state, "token", "create", "eve", "--json", *scopes).stdout)
        words = ["login", shared_agent.listen, "--token", created["token"], "--fingerprint", shared_agent.fingerprint]
        daemons.run(client_state, *words)
        return str(created["issued"]["id"])

    id = login()
    fs = PenstockFileSystem(shared_agent.listen, gateway=shared_agent.webdav("https"), mover="never")
    fs.pipe_file("/data/renewed/f", b"x")
    daemons.run(shared_agent.state, "token", "revoke", id)
    with pytest.raises(PermissionError):
        fs.cat_file("/data/renewed/f")
    id = login()
    assert fs.cat_file("/data/renewed/f") == b"x"
    daemons.run(shared_agent.state, "token", "revoke", id)
    login()
    fs.pipe_file("/data/renewed/f", b"yy")
    assert fs.info("/data/renewed/f")["size"] == 2


def test_renewed_bearer_token_is_found(
    shared_agent: daemons.Daemon, client_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bearer"
    file.write_text("a-token-that-has-expired")
    monkeypatch.setenv("BEARER_TOKEN_FILE", str(file))
    hosts = client_state / "hosts.toml"
    login = {"address": shared_agent.http, "fingerprint": shared_agent.fingerprint}
    hosts.write_text(
        "[[host]]\nbearer = true\n" + "".join(f"{name} = {json.dumps(text)}\n" for name, text in login.items())
    )
    hosts.chmod(0o600)
    with Agent(shared_agent.http) as agent:
        with pytest.raises(UnauthorizedError):
            agent.cancel(999_999)
        file.write_text(shared_agent.token)
        with pytest.raises(NotFoundError):
            agent.cancel(999_999)
