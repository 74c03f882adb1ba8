"""Copies by the program `penstock cp`, which uses many streams and compares digests."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sysconfig
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock._credentials import Credentials
from penstock._tls import format_fingerprint


class CopyError(OSError):
    """`penstock cp` failed; its message names the file and the reason."""


def find_binary() -> str | None:
    """Returns the program `penstock`: `PENSTOCK_BINARY`, else beside this Python, else on the `PATH`."""
    named = os.environ.get("PENSTOCK_BINARY")
    if named:
        return named if os.access(named, os.X_OK) else None
    beside = Path(sysconfig.get_path("scripts")) / "penstock"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("penstock")


@asynccontextmanager
async def _login(address: str, credentials: Credentials) -> AsyncIterator[dict[str, str]]:
    """Gives the program a state directory with one login, so that no argument shows the token."""
    assert credentials.fingerprint is not None
    with tempfile.TemporaryDirectory(prefix="penstock-") as directory:
        hosts = Path(directory) / "hosts.toml"
        with open(os.open(hosts, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            lines = {"address": address, "fingerprint": format_fingerprint(credentials.fingerprint)}
            if credentials.token:
                lines["token"] = credentials.token
            if credentials.certificate and credentials.key:
                lines["certificate"], lines["key"] = str(credentials.certificate), str(credentials.key)
            file.write("[[host]]\n" + "".join(f"{name} = {json.dumps(text)}\n" for name, text in lines.items()))
        yield {**os.environ, "PENSTOCK_STATE": directory}


async def copy(binary: str, source: str, destination: str, address: str, credentials: Credentials) -> dict[str, Any]:
    """Copies a file from or to the agent at `address`; returns the object of `penstock cp --json`."""
    async with _login(address, credentials) as environment:
        process = await asyncio.create_subprocess_exec(
            binary,
            "cp",
            "--json",
            # By size and time alone another file could pass for this one, and would stay.
            "--compare",
            "digest",
            "--",
            source,
            destination,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            printed, complaint = await process.communicate()
        except asyncio.CancelledError:
            process.terminate()
            await process.wait()
            raise
    try:
        result = json.loads(printed)
    except ValueError:
        result = None
    if process.returncode != 0 or not isinstance(result, dict):
        errors = (result or {}).get("errors") or []
        reason = errors[0].get("error") if errors else complaint.decode("utf-8", "replace").strip()
        raise CopyError(f"penstock cp {source} {destination}: {reason} (exit status {process.returncode})")
    return result
