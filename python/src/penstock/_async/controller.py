"""Client of a controller: requests, reservations, hosts, links, events."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any

from penstock import models
from penstock._async.base import AsyncService
from penstock._operations import operation
from penstock._values import ArgumentError, site_path, unix_seconds
from penstock.errors import (
    ResponseError,
    TransferFailedError,
)

#: Files of one call of `append_files`.
FILES_PER_CALL_MAX = 10_000

#: Interval of polls for the state of a request, in seconds.
POLL_INTERVAL_S = 0.5

RequestProgress = Callable[[models.Request], Any]


class AsyncRequestHandle:
    """A submitted request: waits for it, follows its events, changes it."""

    def __init__(self, controller: AsyncController, request: models.Request) -> None:
        self._controller = controller
        self.request = request
        """The request as last read."""

    @property
    def id(self) -> int:
        """Number of the request."""
        return self.request.id

    def __repr__(self) -> str:
        return f"<request {self.id} {self.request.state}>"

    def _repr_html_(self) -> str:
        return self.request._repr_html_()

    async def refresh(self) -> models.Request:
        """Reads the request again."""
        self.request = await self._controller.request(self.id)
        return self.request

    async def wait(
        self, timeout: float | None = None, *, progress: RequestProgress | None = None, check: bool = True
    ) -> models.Request:
        """Waits for the end: see `wait` of the controller."""
        self.request = await self._controller.wait(self.id, timeout, progress=progress, check=check)
        return self.request

    async def follow(self) -> AsyncGenerator[models.ControllerEvent, None]:
        """Yields the events of the request from its submission until it has ended."""
        async with aclosing(self._controller.follow(self.id)) as events:
            async for event in events:
                yield event

    async def cancel(self) -> models.Request:
        """Cancels the request."""
        self.request = await self._controller.cancel(self.id)
        return self.request

    async def change(self, **changes: Any) -> models.Request:
        """Changes the request: see `change` of the controller."""
        self.request = await self._controller.change(self.id, **changes)
        return self.request


class AsyncController(AsyncService):
    """Client of a controller; its address is that of `PENSTOCK_CONTROLLER` unless given, else 127.0.0.1:8621."""

    _variable = "PENSTOCK_CONTROLLER"

    # Requests.

    @operation("POST", "/api/v1/requests")
    async def submit(
        self,
        source: str,
        destination: str,
        *,
        files: Sequence[str | models.FileBody] | None = None,
        class_: str | None = None,
        priority: int | None = None,
        deadline: float | datetime | None = None,
        key: str | None = None,
        open: bool = False,
        attempts: int | None = None,
        overwrite: str | None = None,
        verify: str | None = None,
        encrypt: bool | None = None,
        scitag: int | None = None,
        size_estimate_bytes: int | None = None,
        tune: str | None = None,
        transport: str | None = None,
    ) -> AsyncRequestHandle:
        """Submits a request to copy `SITE:/DIRECTORY` to `SITE:/DIRECTORY`.

        Without `files`, paths below the directory, everything below it is copied. `deadline` is a time, or seconds
        from now. The idempotency `key` is a random one unless given, so that a repeated submission is one request.
        Files beyond 10,000 are appended by further calls.
        """
        (from_site, from_), (to_site, to) = site_path(source), site_path(destination)
        listed = None
        if files is not None:
            listed = file_bodies(files)
        parts = bool(listed) and len(listed or ()) > FILES_PER_CALL_MAX
        body = models.SubmitBody(
            source=from_site,
            from_=from_,
            destination=to_site,
            to=to,
            files=None if listed is None else tuple(listed[:FILES_PER_CALL_MAX]),
            directory=True if listed is None and not open else None,
            open=True if open or parts else None,
            class_=class_,
            priority=priority,
            deadline_unix_seconds=unix_seconds(deadline),
            key=key or str(uuid.uuid4()),
            attempts=attempts,
            overwrite=overwrite,  # type: ignore[arg-type,unused-ignore] # the document may list its values
            verify=verify,  # type: ignore[arg-type,unused-ignore]
            encrypt=encrypt,
            scitag=scitag,
            size_estimate_bytes=size_estimate_bytes,
            tune=tune,  # type: ignore[arg-type,unused-ignore]
            transport=transport,  # type: ignore[arg-type,unused-ignore]
        )
        request = await self._call(
            "POST", "/api/v1/requests", models.Request.from_json, body=body.to_json(), repeatable=True
        )
        if parts:
            assert listed is not None
            # A repeated submission continues where the former one broke off.
            for at in range(max(FILES_PER_CALL_MAX, request.files), len(listed), FILES_PER_CALL_MAX):
                more = listed[at : at + FILES_PER_CALL_MAX]
                seal = not open and at + len(more) == len(listed)
                request = await self.append_files(request.id, more, at=at, seal=seal)
        return AsyncRequestHandle(self, request)

    async def handle(self, id: int) -> AsyncRequestHandle:
        """Returns a handle of an earlier request."""
        return AsyncRequestHandle(self, await self.request(id))

    @operation("GET", "/api/v1/requests/{id}")
    async def request(self, id: int) -> models.Request:
        """Returns a request with its progress."""
        return await self._call("GET", "/api/v1/requests/{id}", models.Request.from_json, path={"id": id})

    @operation("GET", "/api/v1/requests")
    async def list_requests(
        self,
        *,
        state: str | Sequence[str] | None = None,
        class_: str | None = None,
        source: str | None = None,
        destination: str | None = None,
        client: str | None = None,
        key: str | None = None,
        before: int | None = None,
        limit: int | None = None,
    ) -> models.Requests:
        """Returns one page of the requests, newest first; `next` of it is `before` of the next page."""
        query = {
            "state": state,
            "class": class_,
            "source": source,
            "destination": destination,
            "client": client,
            "key": key,
            "before": before,
            "limit": limit,
        }
        return await self._call("GET", "/api/v1/requests", models.Requests.from_json, query=query)

    async def requests(self, **filters: Any) -> AsyncGenerator[models.Request, None]:
        """Yields all requests, newest first, page by page; filters as those of `list_requests`."""
        while True:
            page = await self.list_requests(**filters)
            for request in page.requests:
                yield request
            if page.next is None:
                return
            filters["before"] = page.next

    @operation("PATCH", "/api/v1/requests/{id}")
    async def change(
        self,
        id: int,
        *,
        priority: int | None = None,
        deadline: float | datetime | None = None,
        paused: bool | None = None,
    ) -> models.Request:
        """Changes a request."""
        body = models.ChangeBody(priority=priority, deadline_unix_seconds=unix_seconds(deadline), paused=paused)
        return await self._call(
            "PATCH",
            "/api/v1/requests/{id}",
            models.Request.from_json,
            path={"id": id},
            body=body.to_json(),
            repeatable=True,
        )

    @operation("DELETE", "/api/v1/requests/{id}")
    async def cancel(self, id: int) -> models.Request:
        """Cancels a request. Files in place stay."""
        return await self._call("DELETE", "/api/v1/requests/{id}", models.Request.from_json, path={"id": id})

    @operation("POST", "/api/v1/requests/{id}/files")
    async def append_files(
        self, id: int, files: Iterable[str | models.FileBody], *, at: int, seal: bool = False
    ) -> models.Request:
        """Appends files to an open request that has `at` files; `seal` ends the list."""
        listed = file_bodies(files)
        body = models.AppendBody(at=at, files=tuple(listed), seal=seal)
        return await self._call(
            "POST",
            "/api/v1/requests/{id}/files",
            models.Request.from_json,
            path={"id": id},
            body=body.to_json(),
            repeatable=True,
        )

    @operation("GET", "/api/v1/requests/{id}/files")
    async def list_files(
        self, id: int, *, state: str | None = None, after: int | None = None, limit: int | None = None
    ) -> models.Files:
        """Returns one page of the files of a request."""
        query = {"state": state, "after": after, "limit": limit}
        return await self._call(
            "GET", "/api/v1/requests/{id}/files", models.Files.from_json, path={"id": id}, query=query
        )

    async def files(self, id: int, *, state: str | None = None) -> AsyncGenerator[models.RequestFile, None]:
        """Yields all files of a request, page by page."""
        after = None
        while True:
            page = await self.list_files(id, state=state, after=after)
            for file in page.files:
                yield file
            if page.next is None:
                return
            after = page.next

    @operation("GET", "/api/v1/requests/{id}/history")
    async def history(self, id: int, *, after: int | None = None, limit: int | None = None) -> models.History:
        """Returns one page of the past events of a request."""
        query = {"after": after, "limit": limit}
        return await self._call(
            "GET", "/api/v1/requests/{id}/history", models.History.from_json, path={"id": id}, query=query
        )

    @operation("GET", "/api/v1/requests/{id}/why")
    async def why(self, id: int) -> models.Orders:
        """Returns the orders of a request with the reason for each rate."""
        return await self._call("GET", "/api/v1/requests/{id}/why", models.Orders.from_json, path={"id": id})

    async def wait(
        self,
        id: int,
        timeout: float | None = None,
        *,
        progress: RequestProgress | None = None,
        check: bool = True,
    ) -> models.Request:
        """Waits until a request has ended and returns it; calls `progress` with each new state of it.

        Raises TransferFailedError where it did not end as done, unless `check` is false, and WaitTimeoutError
        after `timeout` seconds. Once it has read the request, it outlasts a restart of the controller
        (`Retry.outage_s`).
        """
        request = await self._ended(f"request {id}", lambda: self.request(id), POLL_INTERVAL_S, timeout, progress)
        if check and request.state != "done":
            reason = request.trouble or f"{request.files_failed} files failed"
            raise TransferFailedError(f"request {id} is {request.state}: {reason}", request)
        return request

    @operation("GET", "/api/v1/events")
    async def events(
        self, *, after: int | None = None, request: int | None = None
    ) -> AsyncGenerator[models.ControllerEvent, None]:
        """Yields events as they happen, for ever; after a lost connection it continues where it was.

        `after` is the number of the last event that is known; without it only new events come.
        """
        query = {"after": after, "request": request}
        async with aclosing(self._events("/api/v1/events", query=query)) as events:
            async for event in events:
                yield _controller_event(event.data)

    async def follow(self, id: int) -> AsyncGenerator[models.ControllerEvent, None]:
        """Yields the events of a request from its submission until it has ended."""
        async with aclosing(self.events(after=0, request=id)) as events:
            async for event in events:
                yield event
                if event.kind in ("done", "partial", "failed", "cancelled"):
                    return

    @operation("GET", "/api/v1/events/network")
    async def network_events(
        self, *, from_: float | None = None, to: float | None = None, limit: int | None = None
    ) -> models.NetworkEvents:
        """Returns drains, links and lost hosts of a period; times below 1 are seconds before now."""
        query = {"from": whole(from_), "to": whole(to), "limit": limit}
        return await self._call("GET", "/api/v1/events/network", models.NetworkEvents.from_json, query=query)

    # Reservations.

    @operation("GET", "/api/v1/reservations")
    async def reservations(self) -> models.Reservations:
        """Returns present and future reservations."""
        return await self._call("GET", "/api/v1/reservations", models.Reservations.from_json)

    @operation("POST", "/api/v1/reservations")
    async def reserve(
        self,
        source: str,
        destination: str,
        rate_bps: int,
        *,
        class_: str,
        begin: float | datetime = 0.0,
        end: float | datetime,
        circuit: bool = False,
    ) -> models.Reservation:
        """Reserves a rate between two sites; `begin` and `end` are times, or seconds from now.

        The call has no idempotency key: it is not repeated after a broken connection.
        """
        begin_s, end_s = unix_seconds(begin), unix_seconds(end)
        assert begin_s is not None
        assert end_s is not None
        body = models.ReserveBody(
            source=source,
            destination=destination,
            rate_bps=rate_bps,
            class_=class_,
            begin_unix_seconds=begin_s,
            end_unix_seconds=end_s,
            circuit=circuit or None,
        )
        return await self._call("POST", "/api/v1/reservations", models.Reservation.from_json, body=body.to_json())

    @operation("DELETE", "/api/v1/reservations/{id}")
    async def cancel_reservation(self, id: int) -> models.Reservation:
        """Gives a reservation back."""
        return await self._call("DELETE", "/api/v1/reservations/{id}", models.Reservation.from_json, path={"id": id})

    # The network.

    @operation("GET", "/api/v1/classes")
    async def classes(self) -> models.Classes:
        """Returns the classes of work with their shares and queues."""
        return await self._call("GET", "/api/v1/classes", models.Classes.from_json)

    @operation("GET", "/api/v1/hosts")
    async def hosts(self) -> models.Hosts:
        """Returns the hosts with their state."""
        return await self._call("GET", "/api/v1/hosts", models.Hosts.from_json)

    @operation("GET", "/api/v1/links")
    async def links(self) -> models.LinkStates:
        """Returns the links with state and rates."""
        return await self._call("GET", "/api/v1/links", models.LinkStates.from_json)

    @operation("PUT", "/api/v1/links/{name}")
    async def set_link(self, name: str, *, down: bool, reason: str | None = None) -> models.LinkBody:
        """Reports a link as down or up."""
        body = models.LinkBody(down=down, reason=reason)
        return await self._call(
            "PUT", "/api/v1/links/{name}", models.LinkBody.from_json, path={"name": name}, body=body.to_json()
        )

    @operation("GET", "/api/v1/orders")
    async def orders(self) -> models.Orders:
        """Returns the running orders with the reason for each rate."""
        return await self._call("GET", "/api/v1/orders", models.Orders.from_json)

    @operation("GET", "/api/v1/rounds")
    async def rounds(self, *, before: int | None = None, limit: int | None = None) -> models.Rounds:
        """Returns one page of the rounds of allocation, newest first."""
        query = {"before": before, "limit": limit}
        return await self._call("GET", "/api/v1/rounds", models.Rounds.from_json, query=query)

    @operation("GET", "/api/v1/audit")
    async def audit(self, *, before: int | None = None, limit: int | None = None) -> models.AuditLog:
        """Returns one page of the audit log, newest first."""
        query = {"before": before, "limit": limit}
        return await self._call("GET", "/api/v1/audit", models.AuditLog.from_json, query=query)

    @operation("PUT", "/api/v1/hosts/{name}/drain")
    async def drain_host(
        self, name: str, *, reason: str | None = None, now: bool = False, gone: bool = False
    ) -> models.Drained:
        """Stops new work at a host; `now` stops running work too, `gone` declares it lost for good."""
        body = models.DrainBody(reason=reason, now=now or None, gone=gone or None)
        return await self._call(
            "PUT", "/api/v1/hosts/{name}/drain", models.Drained.from_json, path={"name": name}, body=body.to_json()
        )

    @operation("DELETE", "/api/v1/hosts/{name}/drain")
    async def undrain_host(self, name: str) -> models.Drained:
        """Lets new work begin at a host again."""
        return await self._call("DELETE", "/api/v1/hosts/{name}/drain", models.Drained.from_json, path={"name": name})

    @operation("PUT", "/api/v1/sites/{name}/drain")
    async def drain_site(
        self, name: str, *, reason: str | None = None, now: bool = False, gone: bool = False
    ) -> models.Drained:
        """Stops new work at all hosts of a site."""
        body = models.DrainBody(reason=reason, now=now or None, gone=gone or None)
        return await self._call(
            "PUT", "/api/v1/sites/{name}/drain", models.Drained.from_json, path={"name": name}, body=body.to_json()
        )

    @operation("DELETE", "/api/v1/sites/{name}/drain")
    async def undrain_site(self, name: str) -> models.Drained:
        """Lets new work begin at the hosts of a site again."""
        return await self._call("DELETE", "/api/v1/sites/{name}/drain", models.Drained.from_json, path={"name": name})

    # ALTO (RFC 7285).

    @operation("GET", "/api/v1/alto/directory")
    async def alto_directory(self) -> dict[str, Any]:
        """Returns the ALTO directory."""
        return await self._call("GET", "/api/v1/alto/directory", dict)

    @operation("GET", "/api/v1/alto/networkmap")
    async def alto_network_map(self) -> dict[str, Any]:
        """Returns the networks of each site."""
        return await self._call("GET", "/api/v1/alto/networkmap", dict)

    @operation("GET", "/api/v1/alto/costmap")
    async def alto_cost_map(self) -> dict[str, Any]:
        """Returns the delay between sites."""
        return await self._call("GET", "/api/v1/alto/costmap", dict)

    # The agents' side, for implementations of an agent.

    @operation("POST", "/api/v1/agents/{host}/report")
    async def report(self, host: str, body: dict[str, Any]) -> dict[str, Any]:
        """Reports as a host and returns its orders (scope `agent:HOST`)."""
        return await self._call("POST", "/api/v1/agents/{host}/report", dict, path={"host": host}, body=body)

    @operation("GET", "/api/v1/agents/{host}/orders/{id}")
    async def order(self, host: str, id: int) -> dict[str, Any]:
        """Returns an order of a host with its files (scope `agent:HOST`)."""
        return await self._call("GET", "/api/v1/agents/{host}/orders/{id}", dict, path={"host": host, "id": id})


def file_bodies(files: Iterable[str | models.FileBody]) -> list[models.FileBody]:
    """Returns the files of a list of paths and files; a text alone would be a list of letters."""
    if isinstance(files, (str, bytes, models.FileBody)):
        raise ArgumentError(f"files is {files!r}: give a list of paths")
    return [file if isinstance(file, models.FileBody) else models.FileBody(path=file) for file in files]


def whole(seconds: float | None) -> int | None:
    """Returns whole seconds for a query."""
    return None if seconds is None else int(seconds)


def _controller_event(data: str) -> models.ControllerEvent:
    try:
        return models.ControllerEvent.from_json(json.loads(data))
    except (ValueError, KeyError, TypeError) as error:
        raise ResponseError(f"an event is not of this API ({error}): server and client differ in version") from error
