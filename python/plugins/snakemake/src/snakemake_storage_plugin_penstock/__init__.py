"""Storage plug-in of Snakemake: `storage.penstock("penstock://HOST/path")`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from snakemake_interface_storage_plugins.common import Operation
from snakemake_interface_storage_plugins.io import IOCacheStorageInterface, Mtime, get_constant_prefix
from snakemake_interface_storage_plugins.settings import StorageProviderSettingsBase
from snakemake_interface_storage_plugins.storage_object import (
    StorageObjectGlob,
    StorageObjectRead,
    StorageObjectWrite,
)
from snakemake_interface_storage_plugins.storage_provider import (
    ExampleQuery,
    QueryType,
    StorageProviderBase,
    StorageQueryValidationResult,
)

from penstock.fsspec import PenstockFileSystem


@dataclass
class StorageProviderSettings(StorageProviderSettingsBase):
    """Settings, also as `--storage-penstock-NAME`."""

    gateway: str | None = field(
        default=None, metadata={"help": "URL of the gateway, https://HOST:8443 unless given", "env_var": False}
    )
    authorities: str | None = field(
        default=None, metadata={"help": "PEM file of authorities, or system; the pinned certificate unless given"}
    )
    mover: str = field(default="auto", metadata={"help": "whole files by penstock cp: auto, never or always"})


class StorageProvider(StorageProviderBase):
    """File systems of the hosts that queries name."""

    def __post_init__(self) -> None:
        self._systems: dict[str, PenstockFileSystem] = {}

    @classmethod
    def example_queries(cls) -> list[ExampleQuery]:
        return [
            ExampleQuery(
                query="penstock://dtn1.example.org/store/cms/events.csv",
                type=QueryType.ANY,
                description="A file of an agent, by the name of its export",
            )
        ]

    def rate_limiter_key(self, query: str, operation: Operation) -> Any:
        return urlsplit(query).netloc

    def default_max_requests_per_second(self) -> float:
        return 100.0

    def use_rate_limiter(self) -> bool:
        return True

    @classmethod
    def is_valid_query(cls, query: str) -> StorageQueryValidationResult:
        url = urlsplit(query)
        valid = url.scheme == "penstock" and bool(url.netloc) and len(url.path) > 1
        reason = None if valid else "write it like penstock://dtn1.example.org/store/file"
        return StorageQueryValidationResult(query=query, valid=valid, reason=reason)

    def system(self, query: str) -> PenstockFileSystem:
        """Returns the file system of a query's host."""
        host = urlsplit(query).netloc
        if host not in self._systems:
            authorities = True if self.settings.authorities == "system" else self.settings.authorities
            self._systems[host] = PenstockFileSystem(
                host, gateway=self.settings.gateway, authorities=authorities, mover=self.settings.mover
            )
        return self._systems[host]


class StorageObject(StorageObjectRead, StorageObjectWrite, StorageObjectGlob):
    """A file or directory of an agent."""

    def __post_init__(self) -> None:
        self._path = PenstockFileSystem._strip_protocol(self.query)

    @property
    def _fs(self) -> PenstockFileSystem:
        system: PenstockFileSystem = self.provider.system(self.query)
        return system

    async def inventory(self, cache: IOCacheStorageInterface) -> None:
        key = self.cache_key()
        if key in cache.exists_in_storage:
            return
        try:
            info = self._fs.info(self._path)
        except FileNotFoundError:
            cache.exists_in_storage[key] = False
            return
        cache.exists_in_storage[key] = True
        cache.mtime[key] = Mtime(storage=info["mtime"].timestamp())
        cache.size[key] = info["size"]

    def get_inventory_parent(self) -> str | None:
        return None

    def local_suffix(self) -> str:
        return f"{urlsplit(self.query).netloc}{self._path}"

    def cleanup(self) -> None:
        """Nothing is left of it."""

    def exists(self) -> bool:
        return bool(self._fs.exists(self._path))

    def mtime(self) -> float:
        return self._fs.modified(self._path).timestamp()

    def size(self) -> int:
        return int(self._fs.info(self._path)["size"])

    def checksum(self) -> str | None:
        """Returns none: Snakemake compares sha256, which the agent would have to compute."""
        return None

    def retrieve_object(self) -> None:
        target = self.local_path()
        if self._fs.isdir(self._path):
            self._fs.get(self._path + "/", str(target) + "/", recursive=True)
        else:
            self._fs.get_file(self._path, str(target))

    def store_object(self) -> None:
        source = self.local_path()
        if source.is_dir():
            self._fs.put(str(source) + "/", self._path + "/", recursive=True)
        else:
            self._fs.put_file(str(source), self._path)

    def remove(self) -> None:
        self._fs.rm(self._path, recursive=self._fs.isdir(self._path))

    def list_candidate_matches(self) -> Iterable[str]:
        prefix = get_constant_prefix(self.query, strip_incomplete_parts=True)
        root = PenstockFileSystem._strip_protocol(prefix)
        base = f"penstock://{urlsplit(self.query).netloc}"
        return [base + path for path in self._fs.find(root)]
