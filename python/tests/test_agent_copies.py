"""Copies that an agent makes by itself, submitted over its HTTP API."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import daemons
from penstock import (
    Agent,
    AsyncAgent,
    ConflictError,
    ConnectionFailedError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    Retry,
    TransferFailedError,
    WaitTimeoutError,
    models,
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[daemons.Daemon, daemons.Daemon]]:
    """Two agents; skipped where the program takes no copies."""
    base = tmp_path_factory.mktemp("pair")
    first, second = daemons.agent(base / "dtn1"), daemons.agent(base / "dtn2")
    try:
        if not daemons.takes_copies(first):
            pytest.skip("this penstock has no POST /api/v1/transfers")
        yield first, second
    finally:
        first.stop()
        second.stop()


def remote(daemon: daemons.Daemon) -> dict[str, str]:
    return {"remote_token": daemon.token, "remote_fingerprint": daemon.fingerprint}


def test_copy_within_an_agent(pair: tuple[daemons.Daemon, daemons.Daemon]) -> None:
    first, _second = pair
    content = os.urandom(3_000_000)
    (first.directory / "data" / "f").write_bytes(content)
    seen: list[models.Transfer] = []
    with Agent(first.http, token=first.token) as agent:
        done = agent.copy("/data/f", "/data/copies/").wait(timeout=120, progress=seen.append)
        assert done.state == "done"
        assert seen[-1] == done
        assert (first.directory / "data" / "copies" / "f").read_bytes() == content
        assert done.id in [one.id for one in agent.transfers()]


def test_copy_between_agents(pair: tuple[daemons.Daemon, daemons.Daemon]) -> None:
    first, second = pair
    tree = first.directory / "data" / "run7"
    tree.mkdir()
    for index in range(50):
        (tree / f"f{index}").write_bytes(os.urandom(1000))
    with Agent(first.http, token=first.token) as agent:
        push = agent.copy("/data/run7", f"penstock://{second.listen}/data/", recursive=True, **remote(second))
        assert push.wait(timeout=120).files == 50
        pull = agent.copy(f"penstock://{second.listen}/data/run7", "/data/back/", recursive=True, **remote(second))
        states = [transfer.state for transfer in pull.follow()]
        assert states[-1] == "done"
    for index in range(50):
        path = Path("back") / "run7" / f"f{index}"
        assert (first.directory / "data" / path).read_bytes() == (tree / f"f{index}").read_bytes()


def test_repeated_copies_are_one(pair: tuple[daemons.Daemon, daemons.Daemon]) -> None:
    first, _second = pair
    (first.directory / "data" / "once").write_bytes(b"once")
    with Agent(first.http, token=first.token) as agent:
        copies = [agent.copy("/data/once", "/data/once2", key="python-once") for _ in range(2)]
        assert copies[0].id == copies[1].id
        with pytest.raises(ConflictError):
            agent.copy("/data/once", "/data/once3", key="python-once")
        copies[0].wait(timeout=120)
        assert agent.cancel_if_running(copies[0].id).state == "done"


def test_refused_copies_raise(pair: tuple[daemons.Daemon, daemons.Daemon]) -> None:
    first, _second = pair
    with Agent(first.http, token=first.token) as agent:
        with pytest.raises((InvalidRequestError, NotFoundError, ForbiddenError)):
            agent.copy("/elsewhere/f", "/data/f")
        with pytest.raises(InvalidRequestError):
            agent.copy("/data/f", "/data/g", streams=0)
        with pytest.raises((NotFoundError, TransferFailedError)):
            agent.copy("/data/no-such-file", "/data/g").wait(timeout=120)


def test_running_copies_are_cancelled(pair: tuple[daemons.Daemon, daemons.Daemon]) -> None:
    first, second = pair
    (first.directory / "data" / "slow").write_bytes(os.urandom(4_000_000))
    with Agent(first.http, token=first.token) as agent:
        target = f"penstock://{second.listen}/data/"
        copy = agent.copy("/data/slow", target, rate_bps=4_000_000, **remote(second))
        daemons.eventually(lambda: copy.refresh().state == "running", "the copy runs")
        copy.cancel()
        with pytest.raises(TransferFailedError, match="cancelled"):
            copy.wait(timeout=60)


async def test_async_copies(pair: tuple[daemons.Daemon, daemons.Daemon]) -> None:
    first, _second = pair
    (first.directory / "data" / "a").write_bytes(b"a")
    async with AsyncAgent(first.http, token=first.token) as agent:
        copy = await agent.copy("/data/a", "/data/b")
        states = [transfer.state async for transfer in copy.follow()]
        assert states[-1] == "done"
    assert (first.directory / "data" / "b").read_bytes() == b"a"


def test_wait_outlasts_a_restart(pair: tuple[daemons.Daemon, daemons.Daemon], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = pair
    content = os.urandom(2_000_000)
    (first.directory / "data" / "restarted").write_bytes(content)
    target = f"penstock://{second.listen}/data/restarted2"
    seen: list[models.Transfer] = []
    polls_without_agent = 0

    def kill_once(state: models.Transfer) -> None:
        seen.append(state)
        if len(seen) == 1:
            first.stop(signal.SIGKILL)

    def sleep(_seconds: float) -> None:
        nonlocal polls_without_agent
        if first.process is None:
            polls_without_agent += 1
            if polls_without_agent == 5:
                first.start()
        else:
            real_sleep(0.05)

    real_sleep = time.sleep
    monkeypatch.setattr("penstock._sync.base.time.sleep", sleep)
    with Agent(first.http, token=first.token, retry=Retry(attempts=1)) as agent:
        copy = agent.copy("/data/restarted", target, rate_bps=8_000_000, **remote(second))
        assert copy.wait(timeout=120, progress=kill_once).state == "done"
    assert polls_without_agent == 5
    assert (second.directory / "data" / "restarted2").read_bytes() == content


def test_wait_ends_in_a_long_outage(pair: tuple[daemons.Daemon, daemons.Daemon]) -> None:
    first, second = pair
    (first.directory / "data" / "away").write_bytes(b"x" * 2_000_000)
    target = f"penstock://{second.listen}/data/away2"

    def stop(_state: models.Transfer) -> None:
        first.stop(signal.SIGKILL)

    try:
        with Agent(first.http, token=first.token, retry=Retry(attempts=1, outage_s=0)) as agent:
            copy = agent.copy("/data/away", target, rate_bps=8_000_000, **remote(second))
            with pytest.raises(ConnectionFailedError):
                copy.wait(progress=stop)
            with pytest.raises(ConnectionFailedError):
                copy.wait()
            first.start()
            with (
                Agent(first.http, token=first.token, retry=Retry(attempts=1)) as other,
                pytest.raises(WaitTimeoutError, match="no answer"),
            ):
                other.wait(copy.id, timeout=0.2, progress=stop)
    finally:
        if first.process is None:
            first.start()
