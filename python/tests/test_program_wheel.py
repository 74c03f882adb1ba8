"""The wheel of `penstock-cli`: its tag, and the program that pip installs from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1] / "cli"


def build_wheel(binary: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    # The backend writes beside the project.
    copy = directory / "project"
    shutil.copytree(PROJECT, copy, dirs_exist_ok=True)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    return subprocess.run(
        [*pip, "--wheel-dir", str(directory / "wheels"), str(copy)],
        env={**os.environ, "PENSTOCK_BINARY": str(binary)},
        capture_output=True,
        text=True,
    )


def test_wheel_installs_the_program(tmp_path: Path) -> None:
    binary = tmp_path / "penstock"
    strip = shutil.which("strip")
    if strip is None:
        pytest.skip("there is no strip (binutils)")
    subprocess.run([strip, "-o", str(binary), os.environ["PENSTOCK_BINARY"]], check=True)
    built = build_wheel(binary, tmp_path)
    assert built.returncode == 0, built.stderr
    (wheel,) = (tmp_path / "wheels").iterdir()
    assert wheel.name.startswith("penstock_cli-0.1.0-py3-none-linux_")
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index", str(wheel)]
    subprocess.run(install, check=True)
    version = subprocess.run(
        [tmp_path / "venv" / "bin" / "penstock", "--version"], check=True, capture_output=True, text=True
    )
    assert version.stdout == "penstock 0.1.0\n"


def test_static_programs_run_on_any_linux(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no cc (gcc)")
    source, binary = tmp_path / "main.c", tmp_path / "penstock"
    source.write_text("int main(void) { return 0; }\n")
    subprocess.run([compiler, "-static", "-o", str(binary), str(source)], check=True)
    built = build_wheel(binary, tmp_path)
    assert built.returncode == 0, built.stderr
    (wheel,) = (tmp_path / "wheels").iterdir()
    assert "-py3-none-manylinux_2_17_x86_64.musllinux_1_1_x86_64.whl" in wheel.name


def test_wheel_needs_a_program(tmp_path: Path) -> None:
    script = tmp_path / "penstock"
    script.write_text("#!/bin/sh\n" * 20)
    for wrong, reason in ((tmp_path / "missing", "set PENSTOCK_BINARY"), (script, "is no program of a 64-bit Linux")):
        built = build_wheel(wrong, tmp_path)
        assert built.returncode != 0
        assert reason in built.stderr, built.stderr
