"""pandas, pyarrow, dask, zarr and xarray read and write through `penstock://`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import daemons

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.libraries


@pytest.fixture
def options(shared_agent: daemons.Daemon) -> dict[str, Any]:
    return {
        "gateway": shared_agent.webdav("https"),
        "token": shared_agent.token,
        "fingerprint": shared_agent.fingerprint,
        "mover": "never",
    }


@pytest.fixture
def url(shared_agent: daemons.Daemon, request: pytest.FixtureRequest) -> str:
    (shared_agent.directory / "data" / request.node.name).mkdir()
    return f"penstock://{shared_agent.listen}/data/{request.node.name}"


@pytest.fixture
def stored(shared_agent: daemons.Daemon, request: pytest.FixtureRequest) -> Path:
    return shared_agent.directory / "data" / request.node.name


@pytest.fixture
def frame() -> Any:
    rows = 20_000
    random = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "event": np.arange(rows),
            "energy": random.random(rows),
            "detector": random.choice(["barrel", "endcap"], rows),
        }
    )


def test_exported_history(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    agent = daemons.Daemon(tmp_path, ("--root", str(tmp_path / "data"))).start()
    try:
        for size in (0, 5, 3_000_000):
            (tmp_path / "file").write_bytes(bytes(size))
            target = f"penstock://{agent.listen}/of{size}"
            daemons.run(agent.state, "cp", "--tune", "off", str(tmp_path / "file"), target)
    finally:
        agent.stop()
    listed = json.loads(daemons.run(agent.state, "tune", "history", "--json").stdout)["transfers"]
    assert [row["announced_bytes"] for row in sorted(listed, key=lambda row: row["id"])] == [0, 5, 3_000_000]
    exported = tmp_path / "history.parquet"
    daemons.run(agent.state, "tune", "export", str(exported))
    rows = pa.parquet.read_table(exported).to_pylist()
    assert {row["id"]: row for row in rows} == {row["id"]: {name: row.get(name) for name in rows[0]} for row in listed}


def test_pandas(url: str, options: dict[str, Any], frame: Any, stored: Path) -> None:
    frame.to_csv(f"{url}/f.csv", index=False, storage_options=options)
    pd.testing.assert_frame_equal(pd.read_csv(f"{url}/f.csv", storage_options=options), frame)
    frame.to_parquet(f"{url}/f.parquet", storage_options=options, engine="pyarrow")
    columns = ["energy"]
    read = pd.read_parquet(f"{url}/f.parquet", storage_options=options, columns=columns, engine="pyarrow")
    pd.testing.assert_frame_equal(read, frame[columns])
    frame.to_csv(f"{url}/f.csv.gz", index=False, storage_options=options)
    assert len(pd.read_csv(f"{url}/f.csv.gz", storage_options=options)) == len(frame)
    assert sorted(os.listdir(stored)) == ["f.csv", "f.csv.gz", "f.parquet"]


def test_pyarrow_dataset(
    url: str, options: dict[str, Any], frame: Any, shared_agent: daemons.Daemon, stored: Path
) -> None:
    import pyarrow.dataset as ds
    import pyarrow.fs

    from penstock.fsspec import PenstockFileSystem

    fs = PenstockFileSystem(shared_agent.listen, **options)
    arrow = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    base = f"/data/{stored.name}/table"
    table = pa.Table.from_pandas(frame)
    ds.write_dataset(table, base, filesystem=arrow, format="parquet", partitioning=["detector"])
    dataset = ds.dataset(base, filesystem=arrow, format="parquet", partitioning=["detector"])
    assert dataset.count_rows() == len(frame)
    barrel = dataset.to_table(filter=ds.field("detector") == "barrel", columns=["event"])
    assert barrel.num_rows == (frame.detector == "barrel").sum()
    assert sorted(os.listdir(stored / "table")) == ["barrel", "endcap"]


def test_dask(url: str, options: dict[str, Any], frame: Any, stored: Path) -> None:
    dd = pytest.importorskip("dask.dataframe")
    parts = dd.from_pandas(frame, npartitions=4)
    parts.to_parquet(f"{url}/table", storage_options=options, write_index=False)
    read = dd.read_parquet(f"{url}/table", storage_options=options)
    assert read.npartitions == 4
    assert float(read.energy.sum().compute()) == pytest.approx(frame.energy.sum())
    parts.to_csv(f"{url}/csv/part-*.csv", storage_options=options, index=False)
    assert len(os.listdir(stored / "csv")) == 4
    assert len(dd.read_csv(f"{url}/csv/*.csv", storage_options=options).compute()) == len(frame)


def test_zarr(url: str, options: dict[str, Any], stored: Path) -> None:
    zarr = pytest.importorskip("zarr")
    content = np.random.default_rng(2).random((300, 200))
    store = zarr.storage.FsspecStore.from_url(f"{url}/z", storage_options=options)
    array = zarr.create_array(store, shape=content.shape, chunks=(100, 100), dtype="f8")
    array[:] = content
    again = zarr.open_array(
        zarr.storage.FsspecStore.from_url(f"{url}/z", storage_options=options, read_only=True), mode="r"
    )
    np.testing.assert_array_equal(again[50:250, 10:190], content[50:250, 10:190])
    assert len([path for path in (stored / "z").rglob("*") if path.is_file()]) >= 6


def test_xarray(url: str, options: dict[str, Any], stored: Path) -> None:
    xr = pytest.importorskip("xarray")
    import fsspec

    dataset = xr.Dataset(
        {"temperature": (("time", "x"), np.arange(12.0).reshape(3, 4))},
        coords={"time": pd.date_range("2026-01-01", periods=3), "x": [1, 2, 3, 4]},
    )
    dataset.to_zarr(f"{url}/z", storage_options=options, mode="w", consolidated=False)
    xr.testing.assert_equal(xr.open_zarr(f"{url}/z", storage_options=options, consolidated=False).load(), dataset)
    # A netCDF-4 file is read in place, by ranges.
    dataset.to_netcdf(stored / "f.nc", engine="h5netcdf")
    with fsspec.open(f"{url}/f.nc", **options) as file, xr.open_dataset(file, engine="h5netcdf") as read:
        xr.testing.assert_equal(read.load(), dataset)
