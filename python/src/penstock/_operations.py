"""Names the operation of openapi.json that a method calls, so that a test finds operations without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


def operation(method: str, path: str) -> Callable[[Method], Method]:
    """Marks a method as the one that calls `method` on `path`."""

    def mark(function: Method) -> Method:
        function.__penstock_operation__ = (method, path)  # type: ignore[attr-defined]
        return function

    return mark
