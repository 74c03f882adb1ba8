"""Task that moves files between two sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator

from penstock import RequestHandle, TransferFailedError
from penstock_airflow.hooks import PenstockHook
from penstock_airflow.triggers import PenstockRequestTrigger


class PenstockTransferOperator(BaseOperator):
    """Submits a request to a controller and waits for its end; returns the number of the request.

    The key of the request is that of the task's run: a task that is tried again continues its request while that is
    running, and submits another one after it has failed.
    """

    template_fields: Sequence[str] = ("source", "destination", "files", "class_")

    def __init__(
        self,
        *,
        source: str,
        destination: str,
        files: Sequence[str] | None = None,
        class_: str | None = None,
        priority: int | None = None,
        deadline_s: float | None = None,
        deferrable: bool = True,
        penstock_conn_id: str = PenstockHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.destination = destination
        self.files = files
        self.class_ = class_
        self.priority = priority
        self.deadline_s = deadline_s
        self.deferrable = deferrable
        self.penstock_conn_id = penstock_conn_id
        self._request: RequestHandle | None = None

    def execute(self, context: Any) -> int:
        """Submits the request, then waits in the triggerer or here."""
        run = context["ti"]
        key = f"airflow/{run.dag_id}/{run.run_id}/{run.task_id}/{run.map_index}"
        request = self._submit(key)
        if request.request.has_ended and request.request.state != "done":
            request = self._submit(f"{key}/{run.try_number}")
        self._request = request
        self.log.info("request %s: %s", request.id, request.request.state)
        if self.deferrable and not request.request.has_ended:
            self.defer(
                trigger=PenstockRequestTrigger(request.id, self.penstock_conn_id),
                method_name="execute_complete",
            )
        request.wait()
        return request.id

    def _submit(self, key: str) -> RequestHandle:
        # No deadline in a repeated submission: it would be another one, and another body is refused.
        client = PenstockHook(self.penstock_conn_id).get_conn()
        found = client.list_requests(key=key, limit=1).requests
        if found:
            return client.handle(found[0].id)
        return client.submit(
            self.source,
            self.destination,
            files=self.files,
            class_=self.class_,
            priority=self.priority,
            deadline=self.deadline_s,
            key=key,
        )

    def execute_complete(self, context: Any, event: dict[str, Any]) -> int:
        """Continues after the trigger has fired."""
        if event["state"] != "done":
            raise TransferFailedError(f"request {event['request']} is {event['state']}: {event['reason']}", event)
        return int(event["request"])

    def on_kill(self) -> None:
        """Cancels the request of a task that is killed while it waits here."""
        if self._request is not None and not self._request.refresh().has_ended:
            self._request.cancel()
