"""Fixtures: daemons as processes, and a state directory of the client's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import daemons


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def client_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Gives each test a state directory without logins."""
    state = tmp_path / "client"
    state.mkdir(mode=0o700)
    for name in ("PENSTOCK_CONTROLLER", "PENSTOCK_GATEWAY", "BEARER_TOKEN", "BEARER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PENSTOCK_STATE", str(state))
    return state


@pytest.fixture(scope="session")
def shared_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[daemons.Daemon]:
    """An agent with a gateway that tests share; each uses a directory of its own below `/data`."""
    daemon = daemons.agent(tmp_path_factory.mktemp("agent") / "dtn1")
    yield daemon
    daemon.stop()


@pytest.fixture(scope="session")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[daemons.Site]:
    """A controller and two agents that tests share."""
    found = daemons.site(tmp_path_factory.mktemp("site"))
    yield found
    found.stop()
