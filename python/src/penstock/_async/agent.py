"""Client of one agent: its transfers, and copies that it makes by itself."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Literal

from penstock import models
from penstock._async.base import AsyncService
from penstock._core import is_absent
from penstock._credentials import MOVER_PORT, Address, resolve
from penstock._operations import operation
from penstock._tls import format_fingerprint
from penstock.errors import (
    ApiError,
    ConflictError,
    CredentialsError,
    NotFoundError,
    ResponseError,
    TransferFailedError,
)

#: Interval of polls for the state of a transfer, in seconds.
POLL_INTERVAL_S = 0.2

TransferProgress = Callable[[models.Transfer], Any]


class AsyncTransferHandle:
    """A copy that an agent makes: waits for it, follows or cancels it."""

    def __init__(self, agent: AsyncAgent, transfer: models.Transfer) -> None:
        self._agent = agent
        self.transfer = transfer
        """The transfer as last read."""

    @property
    def id(self) -> int:
        """Number of the transfer at the agent."""
        return self.transfer.id

    def __repr__(self) -> str:
        return f"<transfer {self.id} {self.transfer.state}>"

    def _repr_html_(self) -> str:
        return self.transfer._repr_html_()

    async def refresh(self) -> models.Transfer:
        """Reads the transfer again."""
        self.transfer = await self._agent.transfer(self.id)
        return self.transfer

    async def wait(
        self, timeout: float | None = None, *, progress: TransferProgress | None = None, check: bool = True
    ) -> models.Transfer:
        """Waits for the end: see `wait` of the agent."""
        self.transfer = await self._agent.wait(self.id, timeout, progress=progress, check=check)
        return self.transfer

    async def follow(self) -> AsyncGenerator[models.Transfer, None]:
        """Yields the transfer whenever it has changed, until it has ended."""
        async with aclosing(self._agent.follow(self.id)) as states:
            async for transfer in states:
                self.transfer = transfer
                yield transfer

    async def cancel(self) -> models.Transfer:
        """Cancels the transfer. Files in place stay."""
        self.transfer = await self._agent.cancel(self.id)
        return self.transfer


class AsyncAgent(AsyncService):
    """Client of an agent, 127.0.0.1:8621 unless an address is given."""

    @operation("GET", "/api/v1/agent")
    async def info(self) -> models.Agent:
        """Returns version, addresses, exports and limits of the agent."""
        return await self._call("GET", "/api/v1/agent", models.Agent.from_json)

    @operation("GET", "/api/v1/disks")
    async def disks(self) -> tuple[models.Disk, ...]:
        """Returns the disks that the agent exports, also those that could not be exported."""
        return (await self._call("GET", "/api/v1/disks", models.Disks.from_json)).disks

    @operation("GET", "/api/v1/disks/{name}")
    async def disk(self, name: str) -> models.Disk:
        """Returns one disk by its name."""
        return await self._call("GET", "/api/v1/disks/{name}", models.Disk.from_json, path={"name": name})

    @operation("PUT", "/api/v1/disks/{name}")
    async def export_disk(
        self, name: str, *, path: str, hosts: Sequence[str], transport: str | None = None
    ) -> models.Disk:
        """Exports a file or device of the agent, below a path that its operator allows, to hosts by their NQN."""
        body = models.DiskExport(
            path=path,
            hosts=tuple(hosts),
            transport=transport,  # type: ignore[arg-type,unused-ignore]
        )
        return await self._call(
            "PUT",
            "/api/v1/disks/{name}",
            models.Disk.from_json,
            path={"name": name},
            body=body.to_json(),
            repeatable=True,
        )

    @operation("DELETE", "/api/v1/disks/{name}")
    async def delete_disk(self, name: str) -> models.Disk:
        """Ends the export of a disk that a client of the API made."""
        return await self._call("DELETE", "/api/v1/disks/{name}", models.Disk.from_json, path={"name": name})

    @operation("PUT", "/api/v1/disks/{name}/hosts/{host_nqn}")
    async def admit_disk_host(self, name: str, host_nqn: str) -> models.Disk:
        """Admits a host to a disk that a client of the API exports."""
        return await self._call(
            "PUT",
            "/api/v1/disks/{name}/hosts/{host_nqn}",
            models.Disk.from_json,
            path={"name": name, "host_nqn": host_nqn},
            repeatable=True,
        )

    @operation("DELETE", "/api/v1/disks/{name}/hosts/{host_nqn}")
    async def remove_disk_host(self, name: str, host_nqn: str) -> models.Disk:
        """Removes a host from a disk that a client of the API exports, and ends its connection."""
        return await self._call(
            "DELETE",
            "/api/v1/disks/{name}/hosts/{host_nqn}",
            models.Disk.from_json,
            path={"name": name, "host_nqn": host_nqn},
        )

    @operation("POST", "/api/v1/disks/{name}/connection")
    async def disk_connection(self, name: str, *, host_nqn: str) -> models.DiskConnection:
        """Returns what a host needs to connect to a disk: address, transport and its secret."""
        return await self._call(
            "POST",
            "/api/v1/disks/{name}/connection",
            models.DiskConnection.from_json,
            path={"name": name},
            body=models.DiskConnectionRequest(host_nqn=host_nqn).to_json(),
            repeatable=True,
        )

    @operation("GET", "/api/v1/transfers")
    async def list_transfers(
        self,
        *,
        state: str | None = None,
        caller: str | None = None,
        after: int | None = None,
        limit: int | None = None,
    ) -> models.Transfers:
        """Returns one page of running and ended transfers, with the state of the connection to a controller.

        Agents without pages take no parameters and return all.
        """
        query = {"state": state, "caller": caller, "after": after, "limit": limit}
        return await self._call("GET", "/api/v1/transfers", models.Transfers.from_json, query=query)

    async def transfers(self, **filters: Any) -> tuple[models.Transfer, ...]:
        """Returns running transfers and those that ended recently; filters as those of `list_transfers`."""
        found: list[models.Transfer] = []
        while True:
            page = await self.list_transfers(**filters)
            found += page.transfers
            after = getattr(page, "next", None)
            if after is None:
                return tuple(found)
            filters["after"] = after

    @operation("GET", "/api/v1/transfers/{id}")
    async def transfer(self, id: int) -> models.Transfer:
        """Returns one transfer."""
        return await self._call("GET", "/api/v1/transfers/{id}", models.Transfer.from_json, path={"id": id})

    @operation("GET", "/api/v1/transfers/{id}/tuning")
    async def tuning(self, id: int) -> models.Tuning:
        """Returns the decisions about the streams of a transfer, or the reason why there are none."""
        return await self._call("GET", "/api/v1/transfers/{id}/tuning", models.Tuning.from_json, path={"id": id})

    @operation("PATCH", "/api/v1/transfers/{id}")
    async def change(
        self,
        id: int,
        *,
        rate_bps: int | None = None,
        streams: int | None = None,
        readers: int | None = None,
        writers: int | None = None,
        tune: Literal["auto", "history", "observe", "off"] | None = None,
    ) -> models.Transfer:
        """Changes a running transfer; a `rate_bps` of 0 is no limit."""
        body = models.Change(rate_bps=rate_bps, streams=streams, readers=readers, writers=writers, tune=tune)
        return await self._call(
            "PATCH",
            "/api/v1/transfers/{id}",
            models.Transfer.from_json,
            path={"id": id},
            body=body.to_json(),
            repeatable=True,
        )

    @operation("DELETE", "/api/v1/transfers/{id}")
    async def cancel(self, id: int) -> models.Transfer:
        """Cancels a transfer. Files in place stay."""
        return await self._call("DELETE", "/api/v1/transfers/{id}", models.Transfer.from_json, path={"id": id})

    @operation("POST", "/api/v1/transfers")
    async def copy(
        self,
        source: str,
        destination: str,
        *,
        recursive: bool = False,
        key: str | None = None,
        remote_token: str | None = None,
        remote_fingerprint: str | None = None,
        remote_login: bool = False,
        overwrite: str | None = None,
        verify: str | None = None,
        encrypt: bool | None = None,
        transport: str | None = None,
        checksum: str | None = None,
        rate_bps: int | None = None,
        streams: int | None = None,
        tune: str | None = None,
        scitag: int | None = None,
        dscp: str | None = None,
    ) -> AsyncTransferHandle:
        """Lets the agent copy files; the copy continues without this client.

        `source` and `destination` are paths as its exports name them, or one of them `penstock://HOST[:PORT]/path`
        of another agent, with that agent's token and fingerprint; `remote_login` takes both from the stored login,
        and this agent receives them. The idempotency `key` is a random one unless given, so that a repeated call is
        one transfer.
        """
        body: dict[str, Any] = {
            "source": source,
            "destination": destination,
            "recursive": recursive or None,
            "key": key or str(uuid.uuid4()),
            "overwrite": overwrite,
            "verify": verify,
            "encrypt": encrypt,
            "transport": transport,
            "checksum": checksum,
            "rate_bps": rate_bps,
            "streams": streams,
            "tune": tune,
            "scitag": scitag,
            "dscp": dscp,
        }
        if remote_login:
            remote_token, remote_fingerprint = remote_credentials(source, destination)
        if remote_token is not None or remote_fingerprint is not None:
            body["remote"] = {"token": remote_token, "fingerprint": remote_fingerprint}
        body = {name: value for name, value in body.items() if value is not None}
        transfer = await self._call("POST", "/api/v1/transfers", models.Transfer.from_json, body=body, repeatable=True)
        return AsyncTransferHandle(self, transfer)

    async def wait(
        self,
        id: int,
        timeout: float | None = None,
        *,
        progress: TransferProgress | None = None,
        check: bool = True,
    ) -> models.Transfer:
        """Waits until a transfer has ended and returns it; calls `progress` with each new state of it.

        Raises TransferFailedError where it did not end as done, unless `check` is false, and WaitTimeoutError
        after `timeout` seconds. Once it has read the transfer, it outlasts a restart of the agent (`Retry.outage_s`).
        """
        transfer = await self._ended(f"transfer {id}", lambda: self.transfer(id), POLL_INTERVAL_S, timeout, progress)
        if check and transfer.state != "done":
            submitted = getattr(transfer, "submitted", None)
            reason = getattr(submitted, "error", None) or f"{transfer.failed} files failed"
            raise TransferFailedError(f"transfer {id} is {transfer.state}: {reason}", transfer)
        return transfer

    @operation("GET", "/api/v1/transfers/events")
    async def events(
        self, *, transfer: int | None = None, after: int | None = None
    ) -> AsyncGenerator[models.Transfer, None]:
        """Yields transfers as they change, for ever; after a lost connection it continues where it was."""
        query = {"transfer": transfer, "after": after}
        async with aclosing(self._events("/api/v1/transfers/events", query=query)) as events:
            async for event in events:
                yield _transfer(event.data)

    async def follow(self, id: int) -> AsyncGenerator[models.Transfer, None]:
        """Yields a transfer whenever it has changed, until it has ended; polls agents that send no events."""
        last = await self.transfer(id)
        yield last
        if last.has_ended:
            return
        try:
            async with aclosing(self.events(transfer=id, after=0)) as states:
                async for transfer in states:
                    if transfer.id == id:
                        yield transfer
                        if transfer.has_ended:
                            return
        except ApiError as error:
            # An older agent takes `events` for a number.
            absent = isinstance(error, NotFoundError) and is_absent(error)
            if not absent and error.status not in (400, 404):
                raise
        while not last.has_ended:
            await asyncio.sleep(POLL_INTERVAL_S)
            transfer = await self.transfer(id)
            if transfer != last:
                yield transfer
            last = transfer

    async def cancel_if_running(self, id: int) -> models.Transfer:
        """Cancels a transfer, or returns it where it has ended."""
        try:
            return await self.cancel(id)
        except ConflictError:
            return await self.transfer(id)


def remote_credentials(source: str, destination: str) -> tuple[str | None, str | None]:
    """Returns token and fingerprint of the stored login for the agent that one of two URLs names."""
    for text in (source, destination):
        if text.startswith("penstock://"):
            address = Address.parse(text.removeprefix("penstock://").partition("/")[0], MOVER_PORT)
            known = resolve(address, mover=True)
            if known.token is None or known.fingerprint is None:
                raise CredentialsError(f"no login for {address} is known: run penstock login {address}")
            return known.token, format_fingerprint(known.fingerprint)
    return None, None


def _transfer(data: str) -> models.Transfer:
    try:
        return models.Transfer.from_json(json.loads(data))
    except (ValueError, KeyError, TypeError) as error:
        raise ResponseError(f"an event is not of this API ({error}): server and client differ in version") from error
