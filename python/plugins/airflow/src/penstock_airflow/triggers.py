"""Wait for the end of a request, in the triggerer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from penstock import PenstockError
from penstock_airflow.hooks import PenstockHook


class PenstockRequestTrigger(BaseTrigger):
    """Fires once a request has ended."""

    def __init__(self, request_id: int, penstock_conn_id: str) -> None:
        super().__init__()
        self.request_id = request_id
        self.penstock_conn_id = penstock_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns class and arguments."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {"request_id": self.request_id, "penstock_conn_id": self.penstock_conn_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields one event with state and reason of the request."""
        try:
            client = await sync_to_async(PenstockHook(self.penstock_conn_id).async_client)()
            async with client:
                request = await client.wait(self.request_id, check=False)
        except PenstockError as error:
            yield TriggerEvent({"request": self.request_id, "state": "unknown", "reason": str(error)})
            return
        reason = request.trouble or f"{request.files_failed} of {request.files} files failed"
        yield TriggerEvent({"request": request.id, "state": request.state, "reason": reason})
