"""Results of a run, from the senders' records and from the collector: JSON, and two plots in PENSTOCK_OUTPUT.

    figures.py MOVER
"""

import glob
import json
import math
import os
import sys
import time
import urllib.request
from collections import defaultdict

mover = sys.argv[1]
folder = os.environ["PENSTOCK_LAB"]
# Rates in the lab are a thousandth of those of the real paths.
SCALE = 1000
PATHS = ("wan-2026", "wan-2027", "wan-2028")
# As sender.py's GROWTH.
GROWTH = 4

SENDERS, PHASES = 4, 3

# Waits for the last sender.
for _ in range(300):
    files = glob.glob(os.path.join(folder, "*.phases"))
    records = [json.loads(line) for name in files for line in open(name) if line.endswith("\n")]
    if len(records) == SENDERS * PHASES:
        break
    time.sleep(0.2)
else:
    sys.exit(f"{len(records)} of {SENDERS * PHASES} phases ended")
phases = defaultdict(list)
for line in records:
    phases[line["label"]].append(line)


def series(by, begin, end):
    url = f"http://127.0.0.1:8621/api/v1/telemetry/series?by={by}&from={math.ceil(begin)}&to={math.floor(end)}&step=1&direction=out"
    with urllib.request.urlopen(url, timeout=20) as answer:
        return json.load(answer)


def mean(values):
    values = [value for value in values if value is not None]
    return sum(values) / len(values) if values else 0.0


def error_of_mean(values):
    middle = mean(values)
    return 1.96 * math.sqrt(sum((value - middle) ** 2 for value in values) / max(len(values) - 1, 1) / max(len(values), 1))


def per_second(lines):
    """Sum over the senders for each second."""
    return [sum(rates) for rates in zip(*(line["bits_per_second"] for line in lines))]


result = {}
totals = {}
for label, lines in phases.items():
    totals[label] = per_second(lines)
    result[label] = {"bits_per_second": mean(totals[label])}
    for path in PATHS:
        result[label][path] = mean(per_second([line for line in lines if line["path"] == path]))
    begin = max(line["begin_s"] for line in lines) + GROWTH + 1
    end = min(line["end_s"] for line in lines) - 1
    answer = series("scitag", begin, end)
    owned = [one for one in answer["series"] if one["key"] not in ("unlabelled", "untrusted", "other")]
    whole = sum(mean(one["bps"]) for one in answer["series"])
    seconds = max(len(answer["series"][0]["bps"]), 1) if answer["series"] else 1
    labelled = sum(mean(one["bps"]) for one in owned)
    # The errors of different seconds are independent.
    error = math.sqrt(sum(sum((e or 0) ** 2 for e in one["error_bps"]) for one in owned)) / seconds
    result[label]["collector_share"] = labelled / whole if whole else None
    result[label]["collector_share_error"] = error / whole if whole else None
    result[label]["collector_bits_per_second"] = mean(answer["total"]["bps"])
    counted = [line["packets"] for line in lines if line["packets"]]
    if counted:
        with_label, without = (sum(column) for column in zip(*counted))
        result[label]["exact_share"] = with_label / (with_label + without)
for label in ("flow", "destination"):
    ratio = result[label]["bits_per_second"] / result["none"]["bits_per_second"]
    spread = sum((error_of_mean(totals[one]) / mean(totals[one])) ** 2 for one in ("none", label))
    result[label]["drop"] = 1 - ratio
    result[label]["drop_error"] = ratio * math.sqrt(spread)


COLOURS = ("#4269d0", "#d97706", "#2f9e44", "#b02a37", "#7c4dbd", "#6b7280")


def plot(file, title, start, lines):
    """Writes a plot of named rates over time; seconds without a value are gaps."""
    wide, high, left, top = 860, 330, 60, 40
    most = max((value for _, values in lines for value in values if value), default=1) * 1.1
    count = max(len(values) for _, values in lines)
    x = lambda second: left + second / max(count - 1, 1) * (wide - left - 20)
    y = lambda value: high - 40 - value / most * (high - 40 - top)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="12">',
           f'<rect width="{wide}" height="{high}" fill="white"/><text x="{left}" y="18" font-size="14">{title}</text>']
    step = 10 ** math.floor(math.log10(most))
    step = next(one for one in (step / 5, step / 2, step, step * 2) if most / one <= 8)
    for number in range(int(most / step) + 1):
        value = number * step
        out.append(f'<path d="M{left} {y(value):.1f}H{wide - 20}" stroke="#ddd"/>'
                   f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.0f}</text>')
    for second in range(0, count, max(count // 8 // 10 * 10, 10)):
        out.append(f'<text x="{x(second):.1f}" y="{high - 22}" text-anchor="middle">{second}</text>')
    out.append(f'<text x="{wide - 20}" y="{high - 6}" text-anchor="end">seconds</text>'
               f'<text x="{left}" y="{top - 8}" text-anchor="end">Gb/s</text>')
    for number, (name, values) in enumerate(lines):
        colour, points, pen = COLOURS[number % len(COLOURS)], [], "M"
        for second, value in enumerate(values):
            if value is None:
                pen = "M"
                continue
            points.append(f"{pen}{x(second):.1f} {y(value):.1f}")
            pen = "L"
        out.append(f'<path d="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
                   f'<text x="{left + 150 * number}" y="{top - 8 + 4}" dx="10" fill="{colour}">{name}</text>')
    out.append("</svg>")
    with open(os.path.join(os.environ.get("PENSTOCK_OUTPUT", "."), file), "w") as page:
        page.write("\n".join(out) + "\n")


everyone = [line for lines in phases.values() for line in lines]
begin, end = min(line["begin_s"] for line in everyone), max(line["end_s"] for line in everyone)
scaled = lambda values: [None if value is None else value * SCALE / 1e9 for value in values]
by_scitag = series("scitag", begin, end)
plot(f"scitags-{mover}.svg", f"Rate of each scitag as the collector saw it, times {SCALE}: {mover}", begin,
     [(one["name"], scaled(one["bps"])) for one in by_scitag["series"]])
by_sender = series("exporter", begin, end)
plot(f"senders-{mover}.svg", f"Rate of each sender as the collector saw it, times {SCALE}: {mover}", begin,
     [(one["name"], scaled(one["bps"])) for one in by_sender["series"]])
print(json.dumps(result))
