"""Submits requests of three classes, samples rates, and compares them with the exact allocation.

    operations.py BURST CUT REPAIR END          each a time such as 40s, from the start of the run

Prints JSON, and writes two plots into PENSTOCK_OUTPUT.
"""

import json
import os
import sys
import time

from ask import ask

CLASSES = {"production": 4, "analysis": 2, "urgent": 8}
MARKS = {"production": 120e6, "analysis": 120e6, "urgent": 150e6}
# Class, source and destination.
WORK = [("production", "cern", "fnal"), ("analysis", "cern", "fnal")]
BURST = ("urgent", "cern", "fnal")
SETTLED_AFTER = 3.0
# Share of a link that file data may use, as set in controller.sh.
USABLE = 0.94
FILES = 400
FILE_BYTES = 4 << 20

burst, cut, repaired, end = (float(text.rstrip("s")) for text in sys.argv[1:])
begun = time.monotonic()


def now():
    return time.monotonic() - begun


def exact(active, capacity, floors):
    """Weighted shares: floors of deadlines first, then by weight up to the marks, then by weight."""
    share = {name: min(floors.get(name, 0.0), MARKS[name]) for name in active}
    limits = {name: MARKS[name] for name in active}
    for bounded in (True, False):
        open_ = {name for name in active if not bounded or share[name] < limits[name]}
        left = capacity - sum(share.values())
        while open_ and left > 1:
            step = min(
                [left / sum(CLASSES[name] for name in open_)]
                + [(limits[name] - share[name]) / CLASSES[name] for name in open_ if bounded]
            )
            for name in open_:
                share[name] += step * CLASSES[name]
            left = capacity - sum(share.values())
            if bounded:
                open_ = {name for name in open_ if share[name] < limits[name] - 1}
    return share


def submit(name, source, destination, number, count=FILES, **more):
    files = [{"path": f"{name}/{file}", "size": FILE_BYTES} for file in range(count)]
    request = {
        "key": f"{name}-{number}", "class": name, "source": source, "destination": destination,
        "from": "/store", "to": f"/store/from-{source}-{number}", "files": files, "encrypt": False, **more,
    }
    return ask("POST", "/api/v1/requests", request)["id"]


requests = [submit(*work, number) for number, work in enumerate(WORK)]
samples = []
# Monotonic time, Unix time, and bytes of the urgent request that are left.
urgent_left = []
urgent = None
deadline = None
while now() < end:
    if urgent is None and now() >= burst:
        # 85 % of what its share can carry until the end, with the link failure.
        share = MARKS["urgent"] * ((cut - burst) + 0.7 * (end - repaired)) + 50e6 * (repaired - cut)
        count = min(FILES, int(0.85 * share / 8 / FILE_BYTES))
        deadline = time.time() + end - now()
        urgent = submit(*BURST, 9, count, deadline_unix_seconds=int(deadline), priority=5)
        requests.append(urgent)
    rates = {name: [0.0, 0.0, 0] for name in CLASSES}
    for order in ask("GET", "/api/v1/orders")["orders"]:
        if order["class"] in rates and order["to"]:
            entry = rates[order["class"]]
            entry[0] += order["rate_bps"] or 0
            entry[1] += order["bits_per_second"]
            entry[2] += 1
    samples.append((now(), rates))
    if urgent is not None:
        facts = ask("GET", f"/api/v1/requests/{urgent}")
        urgent_left.append((now(), time.time(), facts["bytes"] - facts["bytes_done"]))
    time.sleep(0.5)

# Every request has to end, with every file done.
for request in requests:
    while True:
        facts = ask("GET", f"/api/v1/requests/{request}")
        if facts["state"] in ("done", "failed", "partial", "cancelled") or now() > end + 600:
            break
        time.sleep(1)
facts = [ask("GET", f"/api/v1/requests/{request}") for request in requests]
lost = sum(one["files"] - one["files_done"] for one in facts)

# CERN to Fermilab: 200 Mb/s on the direct path and 100 Mb/s via SPRACE.
EVENTS = [(0.0, 300e6, WORK), (burst, 300e6, [*WORK, BURST]), (cut, 100e6, [*WORK, BURST]), (repaired, 300e6, [*WORK, BURST])]
# The end of the urgent request starts a phase. Its last two seconds are not compared: with few files left it cannot use
# its share.
done = next((at for at, rates in samples if at > repaired and rates[BURST[0]][2] == 0), end)
ending = next((at for at, _, left in urgent_left if at > repaired and left <= 2 * MARKS["urgent"] / 8), end)
if done < end:
    EVENTS.append((done, 300e6, WORK))
phases = []
worst_share = worst_allotted = worst_mark = 0.0
for number, (begin, capacity, work) in enumerate(EVENTS):
    until = EVENTS[number + 1][0] if number + 1 < len(EVENTS) else end
    until = ending if begin < ending < until else until
    inside = [rates for at, rates in samples if begin + SETTLED_AFTER <= at < until]
    # A class without data to send has no share.
    active = {name for name, *_ in work if inside and sum(rates[name][2] for rates in inside) > len(inside) / 2}
    # Rate that meets the deadline, as of the start of the phase.
    needs = [8 * left / (deadline - when) for at, when, left in urgent_left if begin <= at < begin + SETTLED_AFTER]
    wanted = exact(active, capacity * USABLE, {"urgent": needs[-1]} if needs else {})
    total = sum(wanted.values()) or 1.0
    had = {name: sum(rates[name][1] for rates in inside) / max(len(inside), 1) for name in CLASSES}
    allotted = {name: sum(rates[name][0] for rates in inside) / max(len(inside), 1) for name in CLASSES}
    sum_had = sum(had[name] for name in active) or 1.0
    for name in active:
        off = abs(had[name] / sum_had - wanted[name] / total)
        worst_share = max(worst_share, off)
        sum_allotted = sum(allotted[one] for one in active) or 1.0
        worst_allotted = max(worst_allotted, abs(had[name] / sum_had - allotted[name] / sum_allotted))
        # Above its mark a class has only spare capacity.
        if wanted[name] <= MARKS[name]:
            worst_mark = max(worst_mark, had[name] / MARKS[name] - 1)
    phases.append({"from_s": begin, "exact": wanted, "allotted": allotted, "measured": had})


def plot(path, title, series):
    """Rates over time as SVG: lines by class, marks dashed, events as verticals."""
    width, height, left, base = 900, 320, 60, 280
    top = max([max(values) for _, values in series] + [1.0]) * 1.1
    x = lambda at: left + (width - left - 20) * at / end
    y = lambda rate: base - (base - 40) * rate / top
    colours = {"production": "#3b6fb6", "analysis": "#c8782a", "urgent": "#a03050"}
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">']
    out.append(f'<rect width="{width}" height="{height}" fill="#fff"/><text x="{left}" y="20" font-size="14">{title}</text>')
    for at, label in ((burst, "burst"), (cut, "cut"), (repaired, "repair")):
        out.append(f'<line x1="{x(at):.1f}" y1="36" x2="{x(at):.1f}" y2="{base}" stroke="#999"/>')
        out.append(f'<text x="{x(at) + 4:.1f}" y="48" fill="#666">{label}</text>')
    for part in range(5):
        rate = top * part / 4
        out.append(f'<text x="{left - 6}" y="{y(rate) + 4:.1f}" text-anchor="end">{rate / 1e6:.0f}</text>')
    out.append(f'<text x="10" y="36">Mb/s</text><line x1="{left}" y1="{base}" x2="{width - 20}" y2="{base}" stroke="#000"/>')
    for place, (name, values) in enumerate(series):
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for (at, _), value in zip(samples, values))
        out.append(f'<polyline points="{points}" fill="none" stroke="{colours[name]}" stroke-width="1.5"/>')
        out.append(f'<text x="{left + 10 + 120 * place}" y="{base + 28}" fill="{colours[name]}">{name}</text>')
        mark = MARKS[name]
        if mark < top:
            out.append(f'<line x1="{left}" y1="{y(mark):.1f}" x2="{width - 20}" y2="{y(mark):.1f}" stroke="{colours[name]}" stroke-dasharray="4 4" opacity="0.5"/>')
    out.append("</svg>\n")
    with open(path, "w") as file:
        file.write("\n".join(out))


output = os.environ.get("PENSTOCK_OUTPUT", ".")
for which, name in ((0, "allotted"), (1, "measured")):
    series = [(one, [rates[one][which] for _, rates in samples]) for one in CLASSES]
    plot(os.path.join(output, f"{name}.svg"), f"Rates {name}, by class", series)

late = 0.0
if deadline is not None:
    done = facts[-1].get("ended_unix_seconds")
    late = max(0.0, (done or time.time()) - deadline)
samples_file = os.path.join(os.environ["PENSTOCK_LAB"], "samples.json")
json.dump(samples, open(samples_file, "w"))
print(json.dumps({
    "worst_share_percent": 100 * worst_share, "worst_allotted_percent": 100 * worst_allotted,
    "worst_mark_percent": 100 * worst_mark,
    "files_lost": lost, "deadline_late_seconds": late, "phases": phases,
}))
