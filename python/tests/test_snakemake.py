"""A workflow of Snakemake whose files are at an agent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import daemons

pytest.importorskip("snakemake")
pytest.importorskip("snakemake_storage_plugin_penstock")

WORKFLOW = """
RUNS = glob_wildcards(storage.penstock("penstock://HOST/data/flow/in/{run}.txt")).run

rule all:
    input:
        storage.penstock("penstock://HOST/data/flow/total.txt")

rule count:
    input:
        storage.penstock("penstock://HOST/data/flow/in/{run}.txt")
    output:
        storage.penstock("penstock://HOST/data/flow/counts/{run}.txt")
    shell:
        "wc -l < {input} > {output}"

rule total:
    input:
        storage.penstock(expand("penstock://HOST/data/flow/counts/{run}.txt", run=RUNS))
    output:
        storage.penstock("penstock://HOST/data/flow/total.txt")
    shell:
        "cat {input} | awk '{{ n += $1 }} END {{ print n }}' > {output}"
"""


def test_workflow_reads_and_writes_at_an_agent(
    shared_agent: daemons.Daemon, client_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["login", shared_agent.listen, "--token", shared_agent.token, "--fingerprint", shared_agent.fingerprint]
    daemons.run(client_state, *words)
    flow = shared_agent.directory / "data" / "flow"
    (flow / "in").mkdir(parents=True)
    for run, lines in (("run1", 3), ("run2", 4)):
        (flow / "in" / f"{run}.txt").write_text("line\n" * lines)
    (tmp_path / "Snakefile").write_text(WORKFLOW.replace("HOST", shared_agent.listen))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run() -> str:
        words = ["--cores", "2", "--storage-penstock-gateway", shared_agent.webdav("https")]
        done = subprocess.run(
            [sys.executable, "-m", "snakemake", *words], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    run()
    assert (flow / "total.txt").read_text().strip() == "7"
    assert sorted(path.name for path in (flow / "counts").iterdir()) == ["run1.txt", "run2.txt"]
    # What is at the agent and newer than its inputs is not made again.
    assert "Nothing to be done" in run()
