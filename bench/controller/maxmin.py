"""Max-min fair rates by a sequence of linear programmes with HiGHS: `cargo xtask bench controller` compares
core/allocation with it. Reads the output of core/allocation/examples/allocation_speed.rs; prints one JSON object.

Each programme raises the level t of all rates that are not fixed yet: maximise t where x_f >= w_f t, links and demands
hold. Then the flows on full links, and those at their demand, are fixed. Each programme starts from the basis of the
previous one. Single paths only: the level then determines which links are full.

    maxmin.py FILE SECONDS
"""

import json
import sys
import time

import highspy
import numpy

UNIT = 1e9


def read(path):
    links, flows = [], []
    for line in open(path, encoding="utf-8"):
        words = line.split()
        if words[0] == "link":
            links.append(float(words[1]) / UNIT)
        else:
            weight, demand, rate = (float(word) for word in words[1:4])
            path_links = [int(word) for word in words[4].split(",")]
            demand = numpy.inf if demand < 0 else demand / UNIT
            flows.append((weight, demand, rate / UNIT, path_links))
    return links, flows


def model(links, flows):
    """Columns: the level, then a rate for each flow. Rows: links, then x_f - w_f t >= 0."""
    lp = highspy.HighsLp()
    columns, rows = 1 + len(flows), len(links) + len(flows)
    lp.num_col_, lp.num_row_ = columns, rows
    lp.sense_ = highspy.ObjSense.kMaximize
    lp.col_cost_ = numpy.array([1.0] + [0.0] * len(flows))
    lp.col_lower_ = numpy.zeros(columns)
    lp.col_upper_ = numpy.array([numpy.inf] + [flow[1] for flow in flows])
    lp.row_lower_ = numpy.array([-numpy.inf] * len(links) + [0.0] * len(flows))
    lp.row_upper_ = numpy.array(links + [numpy.inf] * len(flows))
    starts, index, value = [0], [], []
    for number, flow in enumerate(flows):
        index.append(len(links) + number)
        value.append(-flow[0])
    starts.append(len(index))
    for number, flow in enumerate(flows):
        for link in flow[3]:
            index.append(link)
            value.append(1.0)
        index.append(len(links) + number)
        value.append(1.0)
        starts.append(len(index))
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = numpy.array(starts)
    lp.a_matrix_.index_ = numpy.array(index)
    lp.a_matrix_.value_ = numpy.array(value)
    return lp


def main():
    links, flows = read(sys.argv[1])
    limit = float(sys.argv[2])
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.passModel(model(links, flows))
    fixed = [None] * len(flows)
    programmes, first, began = 0, None, time.process_time()
    while None in fixed and time.process_time() - began < limit:
        solver.run()
        programmes += 1
        level = solver.getInfo().objective_function_value
        first = first or time.process_time() - began
        room = list(links)
        for number, (weight, _, _, path) in enumerate(flows):
            rate = level * weight if fixed[number] is None else fixed[number]
            for link in path:
                room[link] -= rate
        full = [left < 1e-6 * capacity for left, capacity in zip(room, links)]
        now = [
            number
            for number, (weight, demand, _, path) in enumerate(flows)
            if fixed[number] is None
            and (level * weight >= demand - 1e-9 or any(full[link] for link in path))
        ]
        if not now:
            sys.exit(f"nothing is full at level {level}")
        for number in now:
            weight, demand, _, _ = flows[number]
            rate = min(level * weight, demand)
            fixed[number] = rate
            solver.changeColBounds(1 + number, rate * (1 - 1e-12), rate)
            solver.changeRowBounds(len(links) + number, -numpy.inf, numpy.inf)
    seconds = time.process_time() - began
    done = [(rate, flow[2]) for rate, flow in zip(fixed, flows) if rate is not None]
    difference = max(abs(rate - ours) / max(rate, 1e-3) for rate, ours in done)
    print(
        json.dumps(
            {
                "version": solver.version(),
                "programmes": programmes,
                "seconds_of_first": first,
                "seconds": seconds,
                "fixed": len(done),
                "largest_difference": difference,
            }
        )
    )


main()
