"""Blocks of docs/python.md, in order, with daemons of this machine in place of its hosts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import daemons

PAGE = daemons.ROOT / "docs" / "python.md"

CLASSES = '[[controller.class]]\nname = "production"\n[[controller.class]]\nname = "analysis"\n'


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_blocks_of_the_page_run(
    tmp_path: Path, client_state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = daemons.agent(tmp_path / "dtn1")
    site = daemons.site(tmp_path / "site", CLASSES)
    collector = daemons.Daemon(tmp_path / "collector", config="[collector]\nsflow = []\nipfix = []\nfireflies = []\n")
    collector.roles = "collector"
    collector.start()
    try:
        daemons.run(client_state, "login", agent.listen, "--token", agent.token, "--fingerprint", agent.fingerprint)
        monkeypatch.setenv("PENSTOCK_BINARY", str(daemons.binary()))
        (site.data("a") / "run7").mkdir()
        (site.data("a") / "run7" / "f").write_bytes(b"x" * 1000)
        (agent.directory / "data" / "cms").mkdir()
        (tmp_path / "big.dat").write_bytes(b"y" * 1_000_000)
        replaced = {
            'Agent("dtn1.example.org")': f'Agent("{agent.http}", token="{agent.token}")',
            'Controller("controller.example.org")': f'Controller("{site.url}", token="{daemons.CLIENT_TOKEN}")',
            'AsyncController("controller.example.org")': (
                f'AsyncController("{site.url}", token="{daemons.CLIENT_TOKEN}")'
            ),
            'Collector("collector.example.org")': f'Collector("{collector.http}", token="{collector.token}")',
            "https://dtn1.example.org:8443": agent.webdav("https"),
            ', site="cern"': "",
            "penstock://dtn1.example.org/store": f"penstock://{agent.listen}/data",
            'PenstockFileSystem("dtn1.example.org")': (
                f'PenstockFileSystem("{agent.listen}", gateway="{agent.webdav("https")}")'
            ),
            '"/store/': '"/data/',
            "cern:/store": "a:/data",
            "caltech:/store": "b:/data",
            "/scratch": str(tmp_path),
        }
        names: dict[str, Any] = {}
        takes_copies = daemons.takes_copies(agent)
        for block in blocks():
            if "agent.copy(" in block and not takes_copies:
                continue
            for old, new in replaced.items():
                block = re.sub(rf"(?<!\w){re.escape(old)}" if old[0].isalpha() else re.escape(old), new, block)
            exec(compile(block, str(PAGE), "exec"), names)
        assert "done 1 1000" in capsys.readouterr().out
    finally:
        collector.stop()
        site.stop()
        agent.stop()
