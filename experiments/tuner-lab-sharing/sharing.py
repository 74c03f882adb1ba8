"""Copies between two agents that join late and leave early, and how they share the path.

    python3 sharing.py PENSTOCK auto|off TRANSFERS

A transfer joins every ten seconds; after half a minute together the first one leaves. Rates are those of the last ten seconds of
either time.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tuner-lab"))
from agents import SourceAgent, write_file  # noqa: E402

FILE_BYTES = 900_000_000
JOIN_S = 10
TOGETHER_S = 30
AFTER_S = 20
MEASURED_S = 10


def running(agent):
    """Moved bytes and streams of the running transfers, by their numbers."""
    found = [one for one in agent.transfers() if one["state"] == "running"]
    return time.time(), {one["id"]: (one["moved_bytes"], one["streams"]) for one in found}


def measured(agent, seconds):
    """Shares of the path over the last part of this time."""
    time.sleep(seconds - MEASURED_S)
    begun, before = running(agent)
    time.sleep(MEASURED_S)
    ended, after = running(agent)
    rates = [(after[one][0] - before[one][0]) * 8 / (ended - begun) for one in after if one in before]
    squares = sum(rate * rate for rate in rates)
    return {
        "transfers": len(rates),
        "jain": sum(rates) ** 2 / (len(rates) * squares) if squares else 0.0,
        "megabits_per_second": sum(rates) / 1e6,
        "streams": sum(streams for _, streams in after.values()),
        "rates": [round(rate / 1e6, 2) for rate in rates],
    }


def main():
    penstock, mode, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    write_file("file", FILE_BYTES)
    with SourceAgent(penstock, mode) as agent:
        copies = []
        for number in range(count):
            if number > 0:
                time.sleep(JOIN_S)
            copies.append(agent.start_copy("file", f"file{number}"))
        together = measured(agent, TOGETHER_S)
        first = min(one["id"] for one in agent.transfers())
        agent.asked("transfers", "cancel", first, "--http", agent.http)
        after = measured(agent, AFTER_S)
        for copy in copies:
            copy.terminate()
        for copy in copies:
            try:
                copy.wait(10)
            except subprocess.TimeoutExpired:
                copy.kill()
    print(json.dumps({"together": together, "after": after}))


main()
