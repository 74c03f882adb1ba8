"""Clients of real daemons: transfers, requests, events, telemetry."""

from __future__ import annotations

import asyncio
import itertools
import signal
import urllib.request
from contextlib import aclosing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import daemons
from penstock import (
    Agent,
    AsyncController,
    Collector,
    ConflictError,
    ConnectionFailedError,
    Controller,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    Retry,
    TransferFailedError,
    UnauthorizedError,
    WaitTimeoutError,
    models,
)
from penstock._core import EventDecoder


@pytest.fixture
def alice(shared_site: daemons.Site) -> Controller:
    return Controller(shared_site.url, token=daemons.CLIENT_TOKEN)


def test_transfers_of_an_agent(shared_agent: daemons.Daemon, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100_000)
    url = f"penstock://{shared_agent.listen}/data/"
    daemons.run(shared_agent.state, "cp", str(tmp_path / "f"), url)
    with Agent(shared_agent.http, token=shared_agent.token) as agent:
        transfer = max(agent.transfers(), key=lambda one: one.id)
        assert transfer.direction == "receive"
        assert transfer.state == "done"
        assert transfer.has_ended
        assert transfer.moved_bytes == 100_000
        assert agent.wait(transfer.id) == agent.transfer(transfer.id)
        assert list(agent.follow(transfer.id)) == [transfer]
        assert agent.info().started_at < datetime.now(timezone.utc)
        assert "Transfer" in transfer._repr_html_()


def test_running_transfers_change_and_end(shared_agent: daemons.Daemon, tmp_path: Path) -> None:
    (tmp_path / "slow").write_bytes(b"x" * 40_000_000)
    import subprocess

    words = [daemons.binary(), "cp", tmp_path / "slow", f"penstock://{shared_agent.listen}/data/", "--rate", "8M"]
    copy = subprocess.Popen(words, env=daemons.environment(shared_agent.state), stderr=subprocess.DEVNULL)
    with Agent(shared_agent.http, token=shared_agent.token) as agent:

        def running() -> models.Transfer | None:
            return next((one for one in agent.transfers() if one.state == "running"), None)

        transfer = daemons.eventually(running, "the copy runs")
        with pytest.raises(WaitTimeoutError, match="running"):
            agent.wait(transfer.id, timeout=0)
        changed = agent.change(transfer.id, rate_bps=4_000_000, streams=1)
        assert changed.rate_bps == 4_000_000
        agent.cancel(transfer.id)
        with pytest.raises(TransferFailedError) as caught:
            agent.wait(transfer.id, timeout=60)
        assert caught.value.result.has_ended
        assert caught.value.result.state != "done"
    assert copy.wait(60) != 0


def test_errors_carry_problem_documents(shared_agent: daemons.Daemon, alice: Controller) -> None:
    with Agent(shared_agent.http, token="wrong-token-of-enough-length") as agent:
        with pytest.raises((UnauthorizedError, ForbiddenError)):
            agent.cancel(1)
    with Agent(shared_agent.http, token=shared_agent.token) as agent:
        with pytest.raises(NotFoundError) as caught:
            agent.transfer(999_999)
        assert caught.value.title == "Not Found"
        with pytest.raises(InvalidRequestError):
            agent.change(1, rate_bps=-1)
    with pytest.raises(InvalidRequestError) as refused:
        alice.submit("a:/data", "b:/data", files=["x"], priority=9)
    assert refused.value.errors
    assert refused.value.errors[0].pointer == "/priority"


def test_dead_servers_fail_after_retries() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    retry = Retry(attempts=3, first_s=0.001)
    with Agent(address, retry=retry) as agent:
        with pytest.raises(ConnectionFailedError, match="penstock serve"):
            agent.info()
    with Controller(address, retry=retry) as controller:
        with pytest.raises(ConnectionFailedError):
            next(controller.events())


def test_text_is_no_list_of_files(alice: Controller) -> None:
    for files in ("run7.root", b"run7.root"):
        with pytest.raises(ValueError, match="give a list of paths"):
            alice.submit("a:/data", "b:/data", files=files)  # type: ignore[arg-type]


def test_broken_submission_continues(alice: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock._sync.controller.FILES_PER_CALL_MAX", 2)
    append = Controller.append_files

    def broken(self: Controller, id: int, files: Any, *, at: int, seal: bool = False) -> models.Request:
        if at >= 4:
            raise ConnectionFailedError("the connection broke")
        return append(self, id, files, at=at, seal=seal)

    def submit() -> models.Request:
        files = [f"f{index}" for index in range(7)]
        return alice.submit("a:/data/none", "b:/data/broken", files=files, key="broken").request

    with monkeypatch.context() as patch:
        patch.setattr(Controller, "append_files", broken)
        with pytest.raises(ConnectionFailedError):
            submit()
    for _again in range(2):
        request = submit()
        assert (request.files, request.open) == (7, False)
    alice.cancel(request.id)


def test_request_is_submitted_and_followed(shared_site: daemons.Site, alice: Controller) -> None:
    source = shared_site.data("a") / "run1"
    source.mkdir()
    for index in range(20):
        (source / f"f{index}").write_bytes(bytes([index]) * 1000)
    deadline = datetime.now(timezone.utc) + timedelta(hours=1)
    seen: list[models.Request] = []
    request = alice.submit("a:/data/run1", "b:/data/run1", priority=4, deadline=deadline)
    done = request.wait(timeout=120, progress=seen.append)
    assert (done.state, done.files_done, done.bytes_done) == ("done", 20, 20_000)
    assert done.deadline_at is not None
    assert abs(done.deadline_at - deadline) < timedelta(seconds=1)
    assert seen[-1] == done
    assert seen[-1].progress == 1.0
    assert (shared_site.data("b") / "run1" / "f7").read_bytes() == bytes([7]) * 1000
    kinds = [event.kind for event in request.follow()]
    assert kinds[0] == "submitted"
    assert kinds[-1] == "done"
    assert {file.state for file in alice.files(request.id)} == {"done"}
    assert request.id in [one.id for one in alice.requests(source="a", limit=1)]
    assert alice.history(request.id).events[0].kind == "submitted"


def test_repeated_submissions_are_one(shared_site: daemons.Site, alice: Controller) -> None:
    (shared_site.data("a") / "once").write_bytes(b"once")
    words = ("a:/data", "b:/data/once")
    first = alice.submit(*words, files=["once"], key="python-once")
    second = alice.submit(*words, files=["once"], key="python-once")
    assert first.id == second.id
    with pytest.raises(ConflictError):
        alice.submit(*words, files=["other"], key="python-once")
    first.wait(timeout=120)


def test_failed_requests_raise(alice: Controller) -> None:
    request = alice.submit("a:/data", "b:/data/none", files=["no-such-file"])
    with pytest.raises(TransferFailedError, match="failed") as caught:
        request.wait(timeout=120)
    assert caught.value.result.files_failed == 1
    assert request.wait(check=False).state == "failed"


def test_requests_pause_and_cancel(shared_site: daemons.Site, alice: Controller) -> None:
    (shared_site.data("a") / "kept").write_bytes(b"kept")
    request = alice.submit("a:/data", "b:/data/kept", open=True)
    alice.append_files(request.id, ["kept"], at=0)
    assert alice.change(request.id, paused=True, priority=1).paused
    assert request.refresh().priority == 1
    request.cancel()
    assert request.wait(timeout=60, check=False).state == "cancelled"


def test_operators_read_the_network(alice: Controller) -> None:
    assert {host.name for host in alice.hosts().hosts} == {"dtn-a", "dtn-b"}
    assert {link.name for link in alice.links().links} == {"at-a", "at-b"}
    assert alice.classes().classes[0].name == "default"
    assert alice.drain_host("dtn-a", reason="disks").draining
    assert not alice.undrain_host("dtn-a").draining
    assert alice.drain_site("b").draining
    assert not alice.undrain_site("b").draining
    assert alice.network_events(from_=-60).events
    assert alice.audit(limit=5).entries
    assert alice.set_link("at-a", down=True, reason="works").down
    assert not alice.set_link("at-a", down=False).down
    assert alice.alto_directory()["meta"]
    assert alice.alto_network_map()["network-map"] is not None
    assert alice.alto_cost_map()["cost-map"] is not None
    assert alice.rounds(limit=1).rounds[0].id
    assert isinstance(alice.orders().orders, tuple)


def test_reservations_are_made_and_returned(alice: Controller) -> None:
    made = alice.reserve("a", "b", 10**9, class_="default", begin=600, end=1200)
    assert made.id in [one.id for one in alice.reservations().reservations]
    assert made.end_unix_seconds - made.begin_unix_seconds == 600
    alice.cancel_reservation(made.id)
    assert made.id not in [one.id for one in alice.reservations().reservations]
    with pytest.raises(ConflictError):
        alice.reserve("a", "b", 10**12, class_="default", end=600)


async def test_async_client_runs_many_requests(shared_site: daemons.Site) -> None:
    source = shared_site.data("a") / "many"
    source.mkdir()
    for index in range(4):
        (source / f"f{index}").write_bytes(b"x" * index)
    async with AsyncController(shared_site.url, token=daemons.CLIENT_TOKEN) as controller:
        handles = await asyncio.gather(
            *(controller.submit("a:/data/many", f"b:/data/many{index}", files=[f"f{index}"]) for index in range(4))
        )
        done = await asyncio.gather(*(handle.wait(timeout=120) for handle in handles))
        assert [request.state for request in done] == ["done"] * 4
        async with aclosing(controller.events(after=0, request=done[3].id)) as events:
            first = await anext(events)
        assert (first.kind, first.request) == ("submitted", done[3].id)
        found = [request.id async for request in controller.requests(state=["done"], limit=3)]
        assert {request.id for request in done} <= set(found)


def test_events_survive_a_restart(tmp_path: Path) -> None:
    """Each event of a controller that is killed comes once, in order."""
    controller = daemons.controller(tmp_path / "controller")
    try:
        retry = Retry(attempts=200, first_s=0.05, longest_s=0.2)
        with Controller(controller.http, token=daemons.CLIENT_TOKEN, retry=retry) as client:
            links = client.events(after=0)
            client.set_link("at-a", down=True)
            first = next(links)
            for down in (False, True, False):
                controller.stop(signal.SIGKILL)
                controller.start()
                client.set_link("at-a", down=down)
            rest = list(itertools.islice(links, 3))
            texts = [first.text, *(event.text for event in rest)]
            assert len(texts) == 4
            ids = [first.id, *(event.id for event in rest)]
            assert ids == sorted(set(ids))
            assert [event.kind for event in (first, *rest)] == ["link"] * 4
            links.close()
    finally:
        controller.stop()


def test_events_before_the_first_are_not_lost(tmp_path: Path) -> None:
    """A client whose connection breaks before it has received an event continues where it began."""
    controller = daemons.controller(tmp_path / "controller")
    try:
        headers = {"authorization": f"Bearer {daemons.CLIENT_TOKEN}"}
        request = urllib.request.Request(f"http://{controller.http}/api/v1/events", headers=headers)
        decoder = EventDecoder()
        with urllib.request.urlopen(request, timeout=60) as stream:
            assert decoder.feed(stream.readline() + stream.readline()) == []
        assert decoder.last_id is not None
        controller.stop(signal.SIGKILL)
        controller.start()
        with Controller(controller.http, token=daemons.CLIENT_TOKEN) as client:
            client.set_link("at-a", down=True)
            links = client.events(after=int(decoder.last_id))
            assert next(links).kind == "link"
            links.close()
    finally:
        controller.stop()


def test_telemetry_converts_to_tables(tmp_path: Path) -> None:
    (tmp_path / "collector").mkdir()
    (tmp_path / "collector" / "topology.toml").write_text(daemons.TOPOLOGY)
    config = '[collector]\ntopology = "topology.toml"\nsflow = ["127.0.0.1:0"]\nipfix = []\nfireflies = []\n'
    collector = daemons.Daemon(tmp_path / "collector", config=config, roles="collector").start()
    try:
        with Collector(collector.http, token=collector.token) as client:
            assert client.status().inputs
            assert {site.name for site in client.topology().sites} == {"a", "b"}
            assert {row["name"] for row in client.links().rows()} == {"at-a", "at-b"}
            assert client.link_series("at-a", from_=-60).rows()[0]["link"] == "at-a"
            series = client.series("owner", from_=-60)
            assert series.unit == "bit/s"
            assert series.rows() == []
            assert client.talkers().talkers == ()
            assert client.matrix().cells == ()
            assert client.events(kind="alert").rows() == []
            assert client.labels().owners == 0
            assert client.exporters().exporters == ()
            assert client.interfaces().rows() == []
            assert client.alerts().firing == 0
            second = next(client.live(["owner", "site"]))
            assert set(second.by) == {"owner", "site"}
    finally:
        collector.stop()
