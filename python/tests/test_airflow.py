"""Tasks of Airflow that move files between two sites."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import NamedTuple

import pytest

import daemons

pytest.importorskip("airflow")
pytest.importorskip("penstock_airflow")

GRAPHS = """
import json
from datetime import datetime

from airflow.sdk import DAG
from penstock_airflow.operators import PenstockTransferOperator

with DAG("campaign", schedule=None, start_date=datetime(2026, 1, 1), params={"run": 7}) as campaign:
    deferred = PenstockTransferOperator(
        task_id="deferred", source="a:/data/flight{{ params.run }}", destination="b:/data/flight7", deadline_s=3600
    )
    blocking = PenstockTransferOperator(
        task_id="blocking", source="b:/data/flight7", destination="a:/data/flight-back", deferrable=False
    )
    deferred >> blocking

with DAG("missing", schedule=None, start_date=datetime(2026, 1, 1)) as missing:
    PenstockTransferOperator(task_id="deferred", source="a:/data/none", destination="b:/data/none1")
    PenstockTransferOperator(task_id="blocking", source="a:/data/none", destination="b:/data/none2", deferrable=False)

if __name__ == "__main__":
    runs = [campaign.test(), missing.test()]
    states = {run.dag_id: {task.task_id: str(task.state) for task in run.get_task_instances()} for run in runs}
    print(json.dumps(states))
"""


class Outcome(NamedTuple):
    """States of the tasks by graph and name, and the log of all."""

    states: dict[str, dict[str, str]]
    log: str


@pytest.fixture(scope="module")
def outcome(shared_site: daemons.Site, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Runs the tasks of both graphs."""
    directory = tmp_path_factory.mktemp("airflow")
    source = shared_site.data("a") / "flight7"
    source.mkdir()
    for index in range(5):
        (source / f"f{index}").write_bytes(bytes([index]) * 100)
    (directory / "graphs.py").write_text(GRAPHS)
    host, _, port = shared_site.url.rpartition(":")
    connection = {"conn_type": "penstock", "host": host, "port": int(port), "password": daemons.CLIENT_TOKEN}
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(directory / "home"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(directory),
        "AIRFLOW_CONN_PENSTOCK_DEFAULT": json.dumps(connection),
    }
    for words in (["-m", "airflow", "db", "migrate"], ["graphs.py"]):
        done = subprocess.run(
            [sys.executable, *words], cwd=directory, env=environment, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return Outcome(json.loads(done.stdout.splitlines()[-1]), done.stdout)


def test_tasks_move_files(outcome: Outcome, shared_site: daemons.Site) -> None:
    assert outcome.states["campaign"] == {"deferred": "success", "blocking": "success"}, outcome.log[-4000:]
    for index in range(5):
        assert (shared_site.data("b") / "flight7" / f"f{index}").read_bytes() == bytes([index]) * 100
        assert (shared_site.data("a") / "flight-back" / f"f{index}").read_bytes() == bytes([index]) * 100


def test_deferrable_tasks_wait_in_triggerer(outcome: Outcome) -> None:
    deferrals = [line for line in outcome.log.splitlines() if "Pausing task as DEFERRED" in line]
    assert len(deferrals) == 2, outcome.log[-4000:]
    assert all("task_id=deferred" in line for line in deferrals)


def test_missing_source_fails_task(outcome: Outcome) -> None:
    assert outcome.states["missing"] == {"deferred": "failed", "blocking": "failed"}, outcome.log[-4000:]
    assert outcome.log.count("/data/none: no such file or directory") == 2
