"""A task of Airflow that moves files between two sites."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import daemons

pytest.importorskip("airflow")
pytest.importorskip("penstock_airflow")

DAG = """
import json
from datetime import datetime

from airflow.sdk import DAG
from penstock_airflow.operators import PenstockTransferOperator

with DAG("campaign", schedule=None, start_date=datetime(2026, 1, 1), params={"run": 7}) as dag:
    wait = PenstockTransferOperator(
        task_id="wait", source="a:/data/flight{{ params.run }}", destination="b:/data/flight7", deadline_s=3600
    )
    block = PenstockTransferOperator(
        task_id="block", source="b:/data/flight7", destination="a:/data/flight-back", deferrable=False
    )
    wait >> block

if __name__ == "__main__":
    run = dag.test()
    print(json.dumps({"state": str(run.state)}))
"""


def test_tasks_move_files(shared_site: daemons.Site, tmp_path: Path) -> None:
    source = shared_site.data("a") / "flight7"
    source.mkdir()
    for index in range(5):
        (source / f"f{index}").write_bytes(bytes([index]) * 100)
    (tmp_path / "campaign.py").write_text(DAG)
    host, _, port = shared_site.url.rpartition(":")
    connection = {"conn_type": "penstock", "host": host, "port": int(port), "password": daemons.CLIENT_TOKEN}
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path),
        "AIRFLOW_CONN_PENSTOCK_DEFAULT": json.dumps(connection),
    }
    for words in (["-m", "airflow", "db", "migrate"], ["-m", "airflow", "dags", "reserialize"], ["campaign.py"]):
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["state"].endswith("success"), done.stdout[-4000:]
    for index in range(5):
        assert (shared_site.data("b") / "flight7" / f"f{index}").read_bytes() == bytes([index]) * 100
        assert (shared_site.data("a") / "flight-back" / f"f{index}").read_bytes() == bytes([index]) * 100
