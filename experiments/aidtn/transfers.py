"""Copies a file between two agents, with one of the ways to choose its streams.

    python3 transfers.py PENSTOCK STREAMS|history|real-time|both BYTES

With a history the source's agent has sent five files on the clean path before; then competing traffic begins.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tuner-lab"))
from agents import LAB, SOURCE, TARGET, SourceAgent, write_file  # noqa: E402

# Transfers of ten seconds or more, of which the agent needs five.
HISTORY_TRANSFERS = 5
HISTORY_BYTES = 130_000_000


def learn(penstock):
    """Fills the history by tuned transfers."""
    write_file("former", HISTORY_BYTES)
    with SourceAgent(penstock, "auto") as agent:
        for number in range(HISTORY_TRANSFERS):
            agent.start_copy("former", f"former{number}").communicate()
        agent.wait_for_history(HISTORY_TRANSFERS)


def measure(agent, way, size):
    forecast = agent.asked("tune", "predict", SOURCE + "file", TARGET, "--bytes", size).get("forecast")
    options = ["--streams", way] if way.isdigit() else []
    (LAB / "begun").touch()
    begun = time.time()
    result = json.loads(agent.start_copy("file", "file", *options).communicate()[0])
    seconds = time.time() - begun
    tuning = agent.tuning(agent.transfers()[-1]["id"])
    streams = [point["streams"] for point in tuning.get("series") or []] or [result["streams"]]
    return {
        "seconds": seconds,
        "megabits_per_second": size * 8 / seconds / 1e6,
        "retransmits": result["retransmits"],
        "streams": sum(streams) / len(streams),
        "forecast_seconds": forecast and forecast["seconds"]["p50"],
        "mode": tuning.get("mode"),
        "ended": tuning.get("ended"),
        "decisions": [f"{one['seconds']:.1f} s: {one['reason']}" for one in tuning.get("decisions") or []],
    }


def main():
    penstock, way, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    write_file("file", size)
    if way in ("history", "both"):
        learn(penstock)
    with SourceAgent(penstock, "history" if way == "history" else "auto") as agent:
        print(json.dumps(measure(agent, way, size)))


main()
