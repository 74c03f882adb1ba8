"""Transfers of a controller of Penstock as tasks of Airflow."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Describes the package to Airflow."""
    return {
        "package-name": "airflow-penstock",
        "name": "Penstock",
        "description": "Transfers between sites by a controller of Penstock",
        "connection-types": [{"connection-type": "penstock", "hook-class-name": "penstock_airflow.hooks.PenstockHook"}],
        "versions": ["0.1.0"],
    }
