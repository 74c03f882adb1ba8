"""Client of a collector: telemetry by owner, activity, site and link; alerts."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from penstock import models
from penstock._async.base import AsyncService
from penstock._async.controller import whole
from penstock._core import QueryValue
from penstock._operations import operation
from penstock.errors import ResponseError


class AsyncCollector(AsyncService):
    """Client of a collector, 127.0.0.1:8621 unless an address is given.

    Times `from_` and `to` are seconds since 1970, or seconds before now where they are not above 0 (`-600`).
    Filters are words of `by`: `owner="cms"`, `site="cern"`.
    """

    @operation("GET", "/api/v1/telemetry/series")
    async def series(
        self,
        by: str,
        *,
        from_: float | None = None,
        to: float | None = None,
        step: int | None = None,
        direction: str | None = None,
        combine: str | None = None,
        top: int | None = None,
        **filters: QueryValue,
    ) -> models.TelemetrySeries:
        """Returns rates over time by owner, activity, site, host, interface and others."""
        query: dict[str, QueryValue] = {
            **filters,
            "by": by,
            "from": whole(from_),
            "to": whole(to),
            "step": step,
            "direction": direction,
            "combine": combine,
            "top": top,
        }
        return await self._call("GET", "/api/v1/telemetry/series", models.TelemetrySeries.from_json, query=query)

    @operation("GET", "/api/v1/telemetry/links/{name}/series")
    async def link_series(
        self, name: str, *, from_: float | None = None, to: float | None = None, step: int | None = None
    ) -> models.TelemetryLinkSeries:
        """Returns the rates of a link in both directions over time."""
        return await self._call(
            "GET",
            "/api/v1/telemetry/links/{name}/series",
            models.TelemetryLinkSeries.from_json,
            path={"name": name},
            query={"from": whole(from_), "to": whole(to), "step": step},
        )

    @operation("GET", "/api/v1/telemetry/links")
    async def links(self, *, from_: float | None = None, to: float | None = None) -> models.TelemetryLinks:
        """Returns the links of the topology with their use."""
        query = {"from": whole(from_), "to": whole(to)}
        return await self._call("GET", "/api/v1/telemetry/links", models.TelemetryLinks.from_json, query=query)

    @operation("GET", "/api/v1/telemetry/talkers")
    async def talkers(
        self,
        *,
        top: int | None = None,
        n: int | None = None,
        from_: float | None = None,
        to: float | None = None,
        direction: str | None = None,
        **filters: QueryValue,
    ) -> models.TelemetryTalkers:
        """Returns the largest flows of the last seconds: `top` of them, `n` at collectors that call it so."""
        query: dict[str, QueryValue] = {
            **filters,
            "top": top,
            "n": n,
            "from": whole(from_),
            "to": whole(to),
            "direction": direction,
        }
        return await self._call("GET", "/api/v1/telemetry/talkers", models.TelemetryTalkers.from_json, query=query)

    @operation("GET", "/api/v1/telemetry/matrix")
    async def matrix(
        self, *, from_: float | None = None, to: float | None = None, **filters: QueryValue
    ) -> models.TelemetryMatrix:
        """Returns the traffic between sites."""
        query: dict[str, QueryValue] = {**filters, "from": whole(from_), "to": whole(to)}
        return await self._call("GET", "/api/v1/telemetry/matrix", models.TelemetryMatrix.from_json, query=query)

    @operation("GET", "/api/v1/telemetry/labels")
    async def labels(
        self, *, from_: float | None = None, to: float | None = None, **filters: QueryValue
    ) -> models.TelemetryLabels:
        """Returns the shares of labelled traffic."""
        query: dict[str, QueryValue] = {**filters, "from": whole(from_), "to": whole(to)}
        return await self._call("GET", "/api/v1/telemetry/labels", models.TelemetryLabels.from_json, query=query)

    @operation("GET", "/api/v1/telemetry/interfaces")
    async def interfaces(self) -> models.TelemetryInterfaces:
        """Returns the interfaces of all exporters with their counters."""
        return await self._call("GET", "/api/v1/telemetry/interfaces", models.TelemetryInterfaces.from_json)

    @operation("GET", "/api/v1/telemetry/exporters")
    async def exporters(self) -> models.TelemetryExporters:
        """Returns the exporters with their losses."""
        return await self._call("GET", "/api/v1/telemetry/exporters", models.TelemetryExporters.from_json)

    @operation("GET", "/api/v1/telemetry/status")
    async def status(self) -> models.TelemetryStatus:
        """Returns inputs, storage and limits of the collector."""
        return await self._call("GET", "/api/v1/telemetry/status", models.TelemetryStatus.from_json)

    @operation("GET", "/api/v1/telemetry/events")
    async def events(
        self,
        *,
        from_: float | None = None,
        to: float | None = None,
        kind: str | None = None,
        subject: str | None = None,
        link: str | None = None,
        limit: int | None = None,
    ) -> models.TelemetryEvents:
        """Returns alerts, lost exporters, links going down and others of a period."""
        query = {
            "from": whole(from_),
            "to": whole(to),
            "kind": kind,
            "subject": subject,
            "link": link,
            "limit": limit,
        }
        return await self._call("GET", "/api/v1/telemetry/events", models.TelemetryEvents.from_json, query=query)

    @operation("GET", "/api/v1/telemetry/live")
    async def live(
        self,
        by: str | Sequence[str] | None = None,
        *,
        top: int | None = None,
        direction: str | None = None,
        combine: str | None = None,
        **filters: QueryValue,
    ) -> AsyncGenerator[models.TelemetrySecond, None]:
        """Yields each second as it ends, for ever; after a lost connection the missed ones come first."""
        query: dict[str, QueryValue] = {
            **filters,
            "by": by,
            "top": top,
            "direction": direction,
            "combine": combine,
        }
        async with aclosing(self._events("/api/v1/telemetry/live", query=query)) as events:
            async for event in events:
                yield _second(event.data)

    @operation("GET", "/api/v1/telemetry/alerts")
    async def alerts(self) -> models.TelemetryAlerts:
        """Returns the alerts with their state."""
        return await self._call("GET", "/api/v1/telemetry/alerts", models.TelemetryAlerts.from_json)

    @operation("PUT", "/api/v1/telemetry/alerts/{name}/acknowledgement")
    async def acknowledge(self, name: str, comment: str | None = None) -> models.TelemetryAlert:
        """Acknowledges a firing alert."""
        return await self._call(
            "PUT",
            "/api/v1/telemetry/alerts/{name}/acknowledgement",
            models.TelemetryAlert.from_json,
            path={"name": name},
            body=models.TelemetryAcknowledge(comment=comment).to_json(),
        )

    @operation("DELETE", "/api/v1/telemetry/alerts/{name}/acknowledgement")
    async def unacknowledge(self, name: str) -> models.TelemetryAlert:
        """Takes the acknowledgement of an alert back."""
        return await self._call(
            "DELETE",
            "/api/v1/telemetry/alerts/{name}/acknowledgement",
            models.TelemetryAlert.from_json,
            path={"name": name},
        )

    @operation("GET", "/api/v1/topology")
    async def topology(self) -> models.Topology:
        """Returns sites, nodes and links of the network."""
        return await self._call("GET", "/api/v1/topology", models.Topology.from_json)


def _second(data: str) -> models.TelemetrySecond:
    try:
        return models.TelemetrySecond.from_json(json.loads(data))
    except (ValueError, KeyError, TypeError) as error:
        raise ResponseError(f"an event is not of this API ({error}): server and client differ in version") from error
