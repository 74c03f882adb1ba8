"""Connections that the optimizer of FTS3 allows over time, computed by its rules, beside a measured search of penstock.

The rules are those of cern-fts/fts3, src/optimizer/services/OptimizerConnections.cpp: a decision each 60 s, one more connection
(conservative) or two (normal) where the average of the throughput, of weight 0.1, did not fall. No transfer fails, and the queue
is never empty. The path gives each connection 4 Mb/s of 64 Mb/s, as that of bench/results/tuner-paths-2026-11-26.md, from which
the decisions of penstock are. Usage: fts_ramp.py FILE.svg
"""

import math
import sys

CAP_MBPS, LINK_MBPS = 4.0, 64.0
FEWEST, MOST = 2, 130
INTERVAL_S, WEIGHT = 60, 0.1
# Time in seconds and connections: table of decisions in tuner-paths-2026-11-26.md.
MEASURED = [(0.0, 2), (2.3, 4), (4.3, 8), (6.3, 16)]
END_S = 7200


def rate_mbps(connections):
    return min(CAP_MBPS * connections, LINK_MBPS)


def fts(step):
    """Time in seconds and connections after each decision, from the fewest of the range on."""
    connections, average = FEWEST, rate_mbps(FEWEST)
    points = [(0.0, connections)]
    for time_s in range(INTERVAL_S, END_S + 1, INTERVAL_S):
        new = WEIGHT * rate_mbps(connections) + (1 - WEIGHT) * average
        if new >= average:
            connections = min(connections + step, MOST)
        average = new
        points.append((float(time_s), connections))
    return points


def reached(points, share):
    return next(time for time, count in points if rate_mbps(count) >= share * LINK_MBPS)


def svg(series):
    width, height, left, bottom = 640, 300, 50, 40

    def x(time_s):
        return left + (width - left - 150) * math.log10(max(time_s, 1)) / math.log10(END_S)

    def y(count):
        return (height - bottom) * (1 - count / 140) + 10

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for label, time_s in [("1 s", 1), ("10 s", 10), ("1 min", 60), ("10 min", 600), ("1 h", 3600)]:
        parts.append(f'<line x1="{x(time_s):.0f}" y1="10" x2="{x(time_s):.0f}" y2="{y(0):.0f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x(time_s):.0f}" y="{y(0) + 16:.0f}" text-anchor="middle">{label}</text>')
    for count in [2, 16, 130]:
        parts.append(f'<line x1="{left}" y1="{y(count):.0f}" x2="{x(END_S):.0f}" y2="{y(count):.0f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y(count) + 4:.0f}" text-anchor="end">{count}</text>')
    for name, color, points, shift in series:
        ends = [*points, (END_S, points[-1][1])]
        path = f"M{x(ends[0][0]):.1f},{y(ends[0][1]):.1f}"
        path += "".join(f"H{x(time):.1f}V{y(count):.1f}" for time, count in ends[1:])
        parts.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{x(END_S) + 6:.0f}" y="{y(ends[-1][1]) + shift:.0f}" fill="{color}">{name}</text>')
    parts.append(f'<text x="{left}" y="{height - 4}">connections over time; 16 fill the path</text></svg>')
    return "\n".join(parts) + "\n"


def main():
    normal, conservative = fts(2), fts(1)
    for name, points in [("FTS3, normal", normal), ("FTS3, conservative", conservative), ("penstock", MEASURED)]:
        hour = [count for time, count in points if time <= 3600][-1]
        print(f"{name}: 90 % of the path after {reached(points, 0.9):g} s, {hour} connections after an hour")
    series = [
        ("FTS3, normal", "#b35900", normal, -2),
        ("FTS3, conservative", "#7a5195", conservative, 12),
        ("penstock", "#00659b", MEASURED, 4),
    ]
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(svg(series))


main()
