"""Connection of Airflow to a controller."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowRuntimeError

from penstock import AsyncController, Controller

try:
    from airflow.exceptions import AirflowNotFoundException
except ImportError:  # a worker without the core
    AirflowNotFoundException = AirflowRuntimeError


class PenstockHook(BaseHook):
    """Clients of the controller that a connection of type `penstock` names."""

    conn_name_attr = "penstock_conn_id"
    default_conn_name = "penstock_default"
    conn_type = "penstock"
    hook_name = "Penstock"

    def __init__(self, penstock_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.penstock_conn_id = penstock_conn_id

    def settings(self) -> dict[str, Any]:
        """Returns the arguments of a client; none where the connection is not defined."""
        try:
            connection = self.get_connection(self.penstock_conn_id)
        except (AirflowNotFoundException, AirflowRuntimeError):
            return {}
        address = connection.host
        if address and connection.port:
            address = f"{address}:{connection.port}"
        found = {
            "address": address,
            "token": connection.password,
            "fingerprint": connection.extra_dejson.get("fingerprint"),
        }
        return {name: value for name, value in found.items() if value}

    def get_conn(self) -> Controller:
        """Returns a blocking client."""
        return Controller(**self.settings())

    def async_client(self) -> AsyncController:
        """Returns an asynchronous client."""
        return AsyncController(**self.settings())
