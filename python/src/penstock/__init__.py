"""Client of Penstock, the software of a Data Transfer Node.

`Agent` copies files and shows transfers of one host, `Controller` submits requests between sites, `Collector` queries
telemetry. Each has an asynchronous twin. `penstock.fsspec` opens the files of an agent as `penstock://HOST/path`.
"""

from penstock._async.agent import AsyncAgent, AsyncTransferHandle
from penstock._async.collector import AsyncCollector
from penstock._async.controller import AsyncController, AsyncRequestHandle
from penstock._core import Retry
from penstock._sync.agent import Agent, TransferHandle
from penstock._sync.collector import Collector
from penstock._sync.controller import Controller, RequestHandle
from penstock._values import ArgumentError
from penstock.display import LiveDisplay
from penstock.errors import (
    ApiError,
    CertificateMismatchError,
    ChecksumMismatchError,
    ConflictError,
    ConnectionFailedError,
    CredentialsError,
    FieldError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
    RateLimitedError,
    ResponseError,
    TransferFailedError,
    UnauthorizedError,
    UnavailableError,
    WaitTimeoutError,
)

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "ApiError",
    "ArgumentError",
    "AsyncAgent",
    "AsyncCollector",
    "AsyncController",
    "AsyncRequestHandle",
    "AsyncTransferHandle",
    "CertificateMismatchError",
    "ChecksumMismatchError",
    "Collector",
    "ConflictError",
    "ConnectionFailedError",
    "Controller",
    "CredentialsError",
    "FieldError",
    "ForbiddenError",
    "InvalidRequestError",
    "LiveDisplay",
    "NotFoundError",
    "PenstockError",
    "RateLimitedError",
    "RequestHandle",
    "ResponseError",
    "Retry",
    "TransferFailedError",
    "TransferHandle",
    "UnauthorizedError",
    "UnavailableError",
    "WaitTimeoutError",
]
