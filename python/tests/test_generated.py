"""Generated files and the coverage of openapi.json."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import daemons
from penstock import AsyncAgent, AsyncCollector, AsyncController, models
from penstock._sync.agent import Agent
from penstock._sync.collector import Collector
from penstock._sync.controller import Controller

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
DOCUMENT = json.loads((daemons.ROOT / "docs" / "openapi.json").read_text())

#: Parameters that are free filters: words of `by`.
FILTERS = {"owner", "site"}


@pytest.mark.parametrize("script", ["generate_models.py", "generate_sync.py"])
def test_generated_files_are_current(script: str) -> None:
    done = subprocess.run([sys.executable, SCRIPTS / script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def _operations(classes: tuple[type, ...]) -> dict[tuple[str, str], object]:
    return {
        member.__penstock_operation__: member
        for kind in classes
        for _name, member in inspect.getmembers(kind)
        if hasattr(member, "__penstock_operation__")
    }


@pytest.mark.parametrize(
    "classes", [(Agent, Controller, Collector), (AsyncAgent, AsyncController, AsyncCollector)], ids=["sync", "async"]
)
def test_every_operation_has_a_method(classes: tuple[type, ...]) -> None:
    known = _operations(classes)
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            function = known.get((method.upper(), path))
            assert function is not None, f"no method calls {method.upper()} {path}"
            taken = {name.rstrip("_") for name in inspect.signature(function).parameters}
            given = [one for one in operation.get("parameters", []) if one["in"] != "header"]
            wanted = {one["name"] for one in given} - FILTERS
            assert wanted <= taken | {"filters"}, f"{method.upper()} {path}: {wanted - taken}"


def test_schemas_have_dataclasses() -> None:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert hasattr(models, name)
        if "properties" in schema:
            found = {field.name.removesuffix("_") for field in fields(getattr(models, name))}
            assert found == set(schema["properties"]), name


def test_body_fields_reach_callers() -> None:
    """A new field of a body fails here until a method has a parameter for it."""
    renamed = {"deadline_unix_seconds": "deadline", "begin_unix_seconds": "begin", "end_unix_seconds": "end"}
    given = {
        "SubmitBody": (Controller.submit, {"from", "to", "directory"}),
        "ChangeBody": (Controller.change, set()),
        "ReserveBody": (Controller.reserve, set()),
        "DrainBody": (Controller.drain_host, set()),
        "LinkBody": (Controller.set_link, set()),
        "AppendBody": (Controller.append_files, set()),
        "Change": (Agent.change, set()),
        "TransferSubmission": (Agent.copy, {"remote"}),
    }
    for name, (function, implied) in given.items():
        if name not in DOCUMENT["components"]["schemas"]:
            continue
        taken = {parameter.rstrip("_") for parameter in inspect.signature(function).parameters}
        wanted = {renamed.get(field, field) for field in DOCUMENT["components"]["schemas"][name]["properties"]}
        assert wanted - implied <= taken, name
