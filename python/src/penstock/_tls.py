"""TLS contexts: a certificate pinned by its fingerprint, or authorities.

A pinned context compares the server's certificate at the end of the handshake, before any byte of HTTP is sent: a
server with another certificate receives no token.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
from pathlib import Path
from typing import Any

from penstock.errors import CertificateMismatchError, CredentialsError

_PREFIX = "SHA256:"


def parse_fingerprint(text: str) -> bytes:
    """Returns the digest of `SHA256:HEX`, as `penstock login` takes it.

    >>> parse_fingerprint("SHA256:" + "ab" * 32)[:2].hex()
    'abab'
    """
    digits = text.strip().removeprefix(_PREFIX).replace(":", "")
    try:
        digest = bytes.fromhex(digits)
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise CredentialsError(f"'{text}' is no fingerprint: write SHA256: and 64 hexadecimal digits")
    return digest


def format_fingerprint(digest: bytes) -> str:
    """Returns `SHA256:HEX`."""
    return _PREFIX + digest.hex()


def fingerprint_of(certificate: bytes) -> bytes:
    """Returns the fingerprint of a certificate in DER."""
    return hashlib.sha256(certificate).digest()


class PinnedCertificateError(ssl.SSLCertVerificationError):
    """Failure of a handshake with another certificate than the pinned one."""


def _check(context: ssl.SSLContext, certificate: bytes | None) -> None:
    assert isinstance(context, PinnedContext)
    shown = fingerprint_of(certificate or b"")
    if not hmac.compare_digest(shown, context.fingerprint):
        raise PinnedCertificateError(
            f"the server shows another certificate ({format_fingerprint(shown)}) than expected "
            f"({format_fingerprint(context.fingerprint)})"
        )


class _PinnedSocket(ssl.SSLSocket):
    """Blocking socket that compares the certificate in its handshake."""

    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        _check(self.context, self.getpeercert(binary_form=True))


class _PinnedObject(ssl.SSLObject):
    """Memory BIO that compares the certificate in its handshake."""

    def do_handshake(self) -> None:
        super().do_handshake()
        _check(self.context, self.getpeercert(binary_form=True))


class PinnedContext(ssl.SSLContext):
    """Client context that accepts one certificate only, whatever name and issuer it has."""

    sslsocket_class = _PinnedSocket
    sslobject_class = _PinnedObject
    fingerprint: bytes

    def __new__(cls, fingerprint: bytes) -> PinnedContext:
        context = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        context.fingerprint = fingerprint
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


def pinned_context(fingerprint: bytes, certificate: Path | None = None, key: Path | None = None) -> PinnedContext:
    """Returns a context for one server, with a client certificate if given."""
    context = PinnedContext(fingerprint)
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


def authorities_context(authorities: str | Path | bool = True) -> ssl.SSLContext:
    """Returns a context that checks chain and name, by the system's authorities or those of a PEM file or directory."""
    if isinstance(authorities, bool):
        return ssl.create_default_context()
    path = Path(authorities)
    try:
        if path.is_dir():
            return ssl.create_default_context(capath=path)
        return ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise CredentialsError(f"authorities {path}: {error}: name a PEM file or directory") from error


def shown_fingerprint(host: str, port: int, timeout_s: float) -> bytes | None:
    """Connects and returns the fingerprint that a server presents; None where no TLS server answers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            certificate = secured.getpeercert(binary_form=True)
    except (OSError, ValueError):
        return None
    return None if certificate is None else fingerprint_of(certificate)


def mismatch(error: BaseException, address: str) -> CertificateMismatchError | None:
    """Returns the error for a failed check of a certificate among the causes of `error`."""
    cause: Any = error
    while cause is not None:
        if isinstance(cause, PinnedCertificateError):
            remedy = "if the server has a new certificate, log in again; else a third party intercepts the connection"
            return CertificateMismatchError(f"{address}: {cause.args[0]}: {remedy}")
        if isinstance(cause, ssl.SSLCertVerificationError):
            return CertificateMismatchError(
                f"{address}: {cause.verify_message}: give the fingerprint of the certificate, or its authorities"
            )
        cause = cause.__cause__ or cause.__context__
    return None
