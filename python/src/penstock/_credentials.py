"""Credentials of servers: the token to send and the certificate to expect, found as the command `penstock` does.

`penstock login` stores them in `hosts.toml` of the state directory. A daemon on this machine with the same state
directory needs no login. A login is for the server, not for one spelling of its address: at an unknown address its
certificate identifies it. No token is sent to a server with another certificate.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import ssl
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock._tls import fingerprint_of, parse_fingerprint, shown_fingerprint
from penstock.errors import CredentialsError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Port of the HTTP API.
HTTP_PORT = 8621

#: Port of the mover: control and data of transfers.
MOVER_PORT = 8620

#: Longest wait for a certificate that may identify a server.
CERTIFICATE_WAIT_S = 5.0

_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]/]+))(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True)
class Address:
    """Normalised host and port of a server.

    >>> str(Address.parse("DTN1.example.org", 8621)), str(Address.parse("::1", 8621))
    ('dtn1.example.org:8621', '[::1]:8621')
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, default_port: int) -> Address:
        """Reads `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`."""
        plain = text.strip()
        found = _ADDRESS.fullmatch(f"[{plain}]" if plain.count(":") > 1 and "[" not in plain else plain)
        port = int(found["port"]) if found and found["port"] else default_port
        if found is None or not 0 < port < 65536:
            raise CredentialsError(f"'{text}' is no address: write it like dtn1.example.org:{default_port}")
        host = found["v6"] or found["host"]
        try:
            host = str(ipaddress.ip_address(host))
        except ValueError:
            host = host.lower()
        return cls(host, port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def addresses(self) -> list[str]:
        """Returns the numeric addresses of the host; none where it does not resolve."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError:
            return []
        return [str(one[4][0]) for one in found]

    def is_loopback(self) -> bool:
        """True where the host resolves to loopback addresses only."""
        found = self.addresses()
        return bool(found) and all(ipaddress.ip_address(one.split("%")[0]).is_loopback for one in found)

    def is_local(self) -> bool:
        """True where the host resolves to addresses of this machine only."""
        found = self.addresses()
        return bool(found) and all(_is_own(one) for one in found)


def _is_own(address: str) -> bool:
    """True for an address to which a socket of this machine can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


@dataclass(frozen=True)
class Credentials:
    """Credentials for one server."""

    token: str | None = None
    fingerprint: bytes | None = None
    certificate: Path | None = None
    """Client certificate (PEM)."""
    key: Path | None = None

    def __repr__(self) -> str:
        token = "set" if self.token else "none"
        return f"Credentials(token {token}, fingerprint {self.fingerprint.hex() if self.fingerprint else 'none'})"


def state_directory(environment: Mapping[str, str] | None = None) -> Path | None:
    """Returns the state directory: `PENSTOCK_STATE`, else `/var/lib/penstock` for root, else the user's XDG one."""
    environment = os.environ if environment is None else environment
    if environment.get("PENSTOCK_STATE"):
        return Path(environment["PENSTOCK_STATE"])
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return Path("/var/lib/penstock")
    if environment.get("XDG_STATE_HOME"):
        return Path(environment["XDG_STATE_HOME"]) / "penstock"
    home = environment.get("HOME")
    return Path(home) / ".local" / "state" / "penstock" if home else None


class LoginStore:
    """Logins of a state directory."""

    def __init__(self, directory: str | Path | None = None) -> None:
        self.directory = Path(directory) if directory is not None else state_directory()

    def find(self, address: Address, *, mover: bool = False) -> Credentials | None:
        """Finds credentials for a server by its address, else by the certificate that it presents.

        A login at the port of the mover is valid for the HTTP API of the same host, too. With `mover`, `address` is
        itself the mover's.
        """
        hosts = self._hosts()
        name = str(address)
        for host in hosts:
            if host.get("address") == name:
                return self._credentials(host)
        if address.is_local():
            own = self._own()
            if own is not None:
                return own
        if not mover:
            loopback = address.is_loopback()
            on_host = [host for host in hosts if self._is_on_host(host, address, loopback)]
            if len(on_host) > 1:
                raise CredentialsError(
                    f"several agents are known at {address.host}: say which one has its HTTP API at {address} "
                    f"(penstock login {address} --token ... --fingerprint ...)"
                )
            if on_host:
                return self._credentials(on_host[0])
        return self._by_certificate(hosts, address)

    def _is_on_host(self, host: Mapping[str, Any], address: Address, loopback: bool) -> bool:
        try:
            known = Address.parse(str(host.get("address", "")), MOVER_PORT)
        except CredentialsError:
            return False
        return known.host == address.host or (loopback and known.is_loopback())

    def _by_certificate(self, hosts: list[dict[str, Any]], address: Address) -> Credentials | None:
        known = [(host, parse_fingerprint(str(host.get("fingerprint", "")))) for host in hosts]
        if not known:
            return None
        shown = shown_fingerprint(address.host, address.port, CERTIFICATE_WAIT_S)
        return next((self._credentials(host) for host, fingerprint in known if fingerprint == shown), None)

    def _credentials(self, host: Mapping[str, Any]) -> Credentials:
        token = str(host.get("token", "")) or None
        if host.get("bearer"):
            token = bearer_token()
        certificate, key = host.get("certificate"), host.get("key")
        if key is not None and stat.S_IMODE(os.stat(key).st_mode) & 0o077:
            raise CredentialsError(f"{key}: others can read this key: chmod 600 it")
        return Credentials(
            token,
            parse_fingerprint(str(host.get("fingerprint", ""))),
            None if certificate is None else Path(certificate),
            None if key is None else Path(key),
        )

    def _own(self) -> Credentials | None:
        """Credentials of the daemon with this state directory."""
        if self.directory is None:
            return None
        token, certificate = self.directory / "token", self.directory / "agent.crt"
        try:
            secret = _read_secret(token)
            pem = certificate.read_text()
        except (FileNotFoundError, PermissionError):
            return None
        if secret is None:
            return None
        return Credentials(secret.strip(), fingerprint_of(ssl.PEM_cert_to_DER_cert(pem)))

    def _hosts(self) -> list[dict[str, Any]]:
        if self.directory is None:
            return []
        path = self.directory / "hosts.toml"
        text = _read_secret(path)
        if text is None:
            return []
        try:
            hosts = tomllib.loads(text).get("host", [])
        except tomllib.TOMLDecodeError as error:
            # The line itself may contain a token.
            raise CredentialsError(f"{path}: it is no TOML: mend it, or remove it and log in again") from error
        if not isinstance(hosts, list) or not all(isinstance(host, dict) for host in hosts):
            raise CredentialsError(f"{path}: it has no list of hosts: remove it and log in again")
        return hosts


def _read_secret(path: Path) -> str | None:
    """Reads a file that only its owner may read; None where it does not exist."""
    try:
        with path.open() as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if os.name == "posix" and mode & 0o077:
                raise CredentialsError(
                    f"{path}: holds a secret and others may read or change it (mode {mode:04o}): chmod 600 it"
                )
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise CredentialsError(f"{path}: {error.strerror}: set PENSTOCK_STATE to a directory of yours") from error


def bearer_token(environment: Mapping[str, str] | None = None) -> str:
    """Finds a token by WLCG bearer token discovery: BEARER_TOKEN, BEARER_TOKEN_FILE, then files of the user."""
    environment = os.environ if environment is None else environment
    if environment.get("BEARER_TOKEN"):
        return environment["BEARER_TOKEN"].strip()
    user = os.geteuid()
    candidates = []
    if environment.get("BEARER_TOKEN_FILE"):
        candidates.append(Path(environment["BEARER_TOKEN_FILE"]))
    elif environment.get("XDG_RUNTIME_DIR"):
        candidates.append(Path(environment["XDG_RUNTIME_DIR"]) / f"bt_u{user}")
    if not environment.get("BEARER_TOKEN_FILE"):
        candidates.append(Path("/tmp") / f"bt_u{user}")  # noqa: S108 - named by WLCG, owner checked below
    for path in candidates:
        try:
            with path.open() as file:
                owner = os.fstat(file.fileno()).st_uid
                if owner not in (user, 0):
                    raise CredentialsError(f"token {path}: it belongs to user {owner}: remove it")
                return file.read(64 << 10).strip()
        except FileNotFoundError:
            continue
    raise CredentialsError(
        "no bearer token is there: set BEARER_TOKEN or BEARER_TOKEN_FILE, "
        f"or write bt_u{user} in $XDG_RUNTIME_DIR or /tmp"
    )


def resolve(
    address: Address,
    *,
    token: str | None = None,
    fingerprint: str | None = None,
    state: str | Path | None = None,
    mover: bool = False,
) -> Credentials:
    """Combines given credentials with stored ones. Given ones take precedence; nothing is looked up where both are."""
    given = Credentials(token, None if fingerprint is None else parse_fingerprint(fingerprint))
    if given.token is not None and given.fingerprint is not None:
        return given
    # A token that is given for a loopback address needs no certificate.
    if given.token is not None and address.is_loopback():
        return given
    known = LoginStore(state).find(address, mover=mover) or Credentials()
    if given.token is not None:
        known = replace(known, token=given.token)
    if given.fingerprint is not None:
        known = replace(known, fingerprint=given.fingerprint)
    return known


def renewed_token(address: Address, used: Credentials, given: Mapping[str, Any], *, mover: bool = False) -> str | None:
    """Returns the token that a client finds now, where it is another one than it uses; `given` as for `resolve`.

    A token of an issuer is renewed in its file, and a user logs in again with a new one, while a client goes on.
    """
    if given.get("token") is not None:
        return None
    try:
        known = resolve(address, **given, mover=mover)
    except CredentialsError:
        return None
    is_same_server = known.fingerprint == used.fingerprint
    return known.token if is_same_server and known.token != used.token else None
