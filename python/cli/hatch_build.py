"""Puts the built program into the wheel as a script.

``PENSTOCK_BINARY`` is the path of the binary. A static one runs on every Linux of its processor, so that the wheel is
tagged for glibc and musl; one that needs a dynamic loader is tagged for this machine's system alone.
"""

from __future__ import annotations

import os
import platform
import struct
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PT_INTERP = 3


def is_static(binary: Path) -> bool:
    """True for a 64-bit little-endian ELF file that names no dynamic loader."""
    with binary.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{binary} is no program of a 64-bit Linux")
        (offset,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        file.seek(offset)
        entries = file.read(size * count)
    types = (struct.unpack_from("<I", entries, at)[0] for at in range(0, len(entries), size))
    return PT_INTERP not in types


class BinaryBuildHook(BuildHookInterface[Any]):
    """Adds the binary and the tag of its platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fails where ``PENSTOCK_BINARY`` names no program. An editable installation has no program."""
        if version == "editable":
            return
        given = os.environ.get("PENSTOCK_BINARY")
        if not given or not Path(given).is_file():
            raise RuntimeError("set PENSTOCK_BINARY to the binary, such as target/release/penstock: make package does")
        machine = platform.machine()
        tags = f"linux_{machine}"
        if is_static(Path(given)):
            tags = f"manylinux_2_17_{machine}.musllinux_1_1_{machine}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tags}"
        build_data["shared_scripts"][given] = "penstock"
