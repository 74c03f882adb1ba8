"""docs/openapi.json in programs of others: a validator, and a generator of clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import openapi_spec_validator
import pytest
from openapi_spec_validator.validation.exceptions import OpenAPIValidationError

import daemons

PATH = daemons.ROOT / "docs" / "openapi.json"
DOCUMENT = json.loads(PATH.read_text())

#: Prints the number of functions that call an operation, after importing every module.
IMPORT_ALL = """
import importlib, pkgutil
import generated
found = [importlib.import_module(one.name) for one in pkgutil.walk_packages(generated.__path__, "generated.")]
print(sum(hasattr(module, "sync_detailed") for module in found))
"""


def test_document_is_valid() -> None:
    openapi_spec_validator.validate(DOCUMENT)


def test_repeated_operation_is_invalid() -> None:
    wrong = json.loads(PATH.read_text())
    wrong["paths"]["/again"] = {"get": wrong["paths"]["/api/v1/transfers"]["get"]}
    with pytest.raises(OpenAPIValidationError):
        openapi_spec_validator.validate(wrong)


def test_generated_client_has_every_operation(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("post_hooks: []\n")
    words = ["generate", "--path", PATH, "--meta", "none", "--output-path", tmp_path / "generated"]
    command = [sys.executable, "-m", "openapi_python_client", *words, "--config", tmp_path / "config.yaml"]
    done = subprocess.run([*command, "--fail-on-warning"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    operations = [one for methods in DOCUMENT["paths"].values() for one in methods if one != "parameters"]
    assert int(done.stdout) == len(operations)
