"""Trains the model of `penstock tune predict` from a history, and evaluates it.

    python3 train.py HISTORY.csv [HISTORY.csv ...] --model forecast.json --report report.json

A history is a file of `penstock tune export FILE.csv`. With `--gridftp` the files are the GridFTP histories that come
with Falcon (https://github.com/arif-zaman/Falcon-File-Transfer-Optimizer, no licence: fetch them yourself); they are
evaluated, and no model is written, because they lack most features.

Every split is by time: a model sees only transfers that ended before the test transfers began. The same seed gives the
same file.
"""

import argparse
import hashlib
import json
import math
import sys
from collections import defaultdict
from pathlib import Path

try:
    import numpy as np
    import xgboost
except ImportError as error:
    sys.exit(f"train.py: {error}: use the Python of make forecast-training")

import features as history
from features import FEATURES, HOST, NETWORK, STORAGE, FileError, Transfer

FORMAT, VERSION = "penstock-forecast", 1
QUANTILES = [0.1, 0.5, 0.9]
TARGET = "ln_bits_per_second"

#: Fewest transfers from which a model is trained.
ROWS_MIN = 50

#: Parts in time of the rolling-origin evaluation: the first is for training alone.
FOLDS = 5

#: Golden vectors of a model file.
GOLDEN = 64

PARAMETERS = {
    "objective": "reg:quantileerror",
    "quantile_alpha": QUANTILES,
    "tree_method": "hist",
    "max_depth": 5,
    "eta": 0.1,
    "min_child_weight": 4,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
    # One thread: sums of several are not the same each time.
    "nthread": 1,
}


def matrix(transfers: list[Transfer], columns: list[str]) -> np.ndarray:
    return np.array([[one.features[name] for name in columns] for one in transfers], dtype=np.float32)


def target(transfers: list[Transfer]) -> np.ndarray:
    return np.log(np.array([one.rate for one in transfers], dtype=np.float64))


def train(transfers: list[Transfer], columns: list[str], seed: int, rounds: int) -> xgboost.Booster:
    data = xgboost.DMatrix(matrix(transfers, columns), label=target(transfers))
    return xgboost.train(PARAMETERS | {"seed": seed}, data, rounds)


def predict(booster: xgboost.Booster, transfers: list[Transfer], columns: list[str]) -> np.ndarray:
    """Quantiles of the rates in order, a row for each transfer."""
    logarithms = booster.predict(xgboost.DMatrix(matrix(transfers, columns))).reshape(len(transfers), len(QUANTILES))
    return np.exp(np.sort(logarithms, axis=1))


class Linear:
    """Ridge regression of the logarithm of the rate on standardised logarithms of the features."""

    def __init__(self, transfers: list[Transfer], columns: list[str]):
        self.columns = columns
        values = self.values(transfers)
        present = [column[~np.isnan(column)] for column in values.T]
        self.mean = np.array([column.mean() if len(column) else 0 for column in present])
        deviation = np.array([column.std() if len(column) else 0 for column in present])
        self.deviation = np.where(deviation > 0, deviation, 1)
        inputs = self.inputs(values)
        penalty = np.eye(inputs.shape[1]) * 1.0
        penalty[-1, -1] = 0
        self.weights = np.linalg.solve(inputs.T @ inputs + penalty, inputs.T @ target(transfers))

    def values(self, transfers: list[Transfer]) -> np.ndarray:
        return np.log1p(np.maximum(matrix(transfers, self.columns).astype(np.float64), 0))

    def inputs(self, values: np.ndarray) -> np.ndarray:
        scaled = np.nan_to_num((values - self.mean) / self.deviation)
        return np.hstack([scaled, np.ones((len(scaled), 1))])

    def predict(self, transfers: list[Transfer]) -> np.ndarray:
        return np.exp(np.clip(self.inputs(self.values(transfers)) @ self.weights, 0, 41.5))


def pair_means(transfers: list[Transfer]) -> tuple[dict, float]:
    rates = defaultdict(list)
    for one in transfers:
        rates[one.pair].append(one.rate)
    return {pair: float(np.mean(of_pair)) for pair, of_pair in rates.items()}, float(
        np.mean([one.rate for one in transfers])
    )


def columns_of(groups: set[str]) -> list[str]:
    return [name for name, _, group in FEATURES if group in groups]


#: Feature sets that are compared; the last has all.
GRIDFTP = {"settings and path": history.GRIDFTP_FEATURES}
ABLATION = {
    "network": columns_of({NETWORK}),
    "network + host": columns_of({NETWORK, HOST}),
    "network + host + storage": columns_of({NETWORK, HOST, STORAGE}),
}


def scores(truth: np.ndarray, guess: np.ndarray) -> dict[str, float]:
    """Errors of rates. NRMSE divides by the mean, and beside it by the range and the standard deviation."""
    error = guess - truth
    rmse = float(np.sqrt(np.mean(error**2)))
    spread, deviation = float(np.ptp(truth)), float(np.std(truth))
    return {
        "nrmse_by_mean": rmse / float(np.mean(truth)),
        "nrmse_by_range": rmse / spread if spread else None,
        "nrmse_by_deviation": rmse / deviation if deviation else None,
        "median_absolute_percentage_error": float(np.median(np.abs(error) / truth)) * 100,
    }


def noise_floor(transfers: list[Transfer]) -> dict[str, float] | None:
    """Deviation of transfers that repeat each other (same pair, size and settings) by the mean of all rates.

    A model of path, size and settings alone cannot have a smaller `nrmse_by_mean`; one that knows the load of the
    moment, or the last rate of the pair, can.
    """
    repeats = defaultdict(list)
    for one in transfers:
        repeats[(one.pair, one.settings)].append(one.rate)
    groups = [np.array(rates) for rates in repeats.values() if len(rates) > 1]
    if not groups:
        return None
    freedom = sum(len(rates) - 1 for rates in groups)
    within = sum(float(np.sum((rates - rates.mean()) ** 2)) for rates in groups)
    return {
        "nrmse_by_mean": math.sqrt(within / freedom) / float(np.mean(np.concatenate(groups))),
        "groups": len(groups),
        "transfers": sum(len(rates) for rates in groups),
    }


def evaluate(splits: list[tuple[list[Transfer], list[Transfer]]], sets: dict, seed: int, rounds: int) -> dict:
    """Scores of the models and the baselines over all test parts together."""
    truth, guesses, covered = [], defaultdict(list), []
    everything = list(sets.values())[-1]
    for known, unknown in splits:
        truth.append(np.array([one.rate for one in unknown]))
        means, of_all = pair_means(known)
        guesses["mean of pair"].append(np.array([means.get(one.pair, of_all) for one in unknown]))
        guesses["last value of pair"].append(
            np.array(
                [
                    of_all if math.isnan(one.features["pair_last_bps"]) else one.features["pair_last_bps"]
                    for one in unknown
                ]
            )
        )
        guesses["linear"].append(Linear(known, everything).predict(unknown))
        for name, columns in sets.items():
            rates = predict(train(known, columns, seed, rounds), unknown, columns)
            guesses[f"trees: {name}"].append(rates[:, 1])
            if columns == everything:
                covered.append((rates[:, 0] <= truth[-1]) & (truth[-1] <= rates[:, 2]))
    together = np.concatenate(truth)
    return {
        "test_transfers": len(together),
        "mean_bits_per_second": float(np.mean(together)),
        "scores": {name: scores(together, np.concatenate(parts)) for name, parts in guesses.items()},
        "share_between_p10_and_p90": float(np.mean(np.concatenate(covered))),
    }


def rolling_origin(transfers: list[Transfer]) -> list[tuple[list[Transfer], list[Transfer]]]:
    """Each part in time after the first is tested with a model of what had ended before it began."""
    parts = np.array_split(np.arange(len(transfers)), FOLDS + 1)
    splits = []
    for part in parts[1:]:
        begin = transfers[part[0]].started
        known = [one for one in transfers[: part[0]] if one.end <= begin]
        if len(known) >= ROWS_MIN // 2 and len(part):
            splits.append((known, [transfers[at] for at in part]))
    return splits


def by_pair(transfers: list[Transfer]) -> list[tuple[list[Transfer], list[Transfer]]]:
    """Each pair is tested with a model of the others: what a new path can expect."""
    pairs = sorted({one.pair for one in transfers})
    if len(pairs) < 2:
        return []
    # At most ten groups of pairs.
    group = {pair: at % 10 for at, pair in enumerate(pairs)}
    splits = []
    for number in sorted(set(group.values())):
        known = [one for one in transfers if group[one.pair] != number]
        if len(known) >= ROWS_MIN // 2:
            splits.append((known, [one for one in transfers if group[one.pair] == number]))
    return splits


def bundle(transfers: list[Transfer], sha256: str, seed: int, rounds: int, evaluation: dict) -> dict:
    """The model file: docs/forecast.md describes its fields."""
    columns = columns_of({NETWORK, HOST, STORAGE})
    booster = train(transfers, columns, seed, rounds)
    inputs = matrix(transfers, columns).astype(np.float64)
    described = []
    for at, (name, unit, group) in enumerate(FEATURES):
        present = inputs[:, at][~np.isnan(inputs[:, at])]
        described.append(
            {
                "name": name,
                "unit": unit,
                "group": group,
                "offset": 0.0,
                "scale": 1.0,
                "low": float(present.min()) if len(present) else None,
                "high": float(present.max()) if len(present) else None,
                "missing": len(present) < len(inputs),
            }
        )
    random = np.random.default_rng(seed)
    golden = inputs[random.choice(len(inputs), min(GOLDEN, len(inputs)), replace=False)].copy()
    # A third with values that no transfer had, and with values missing.
    for vector in golden[::3]:
        vector[random.random(len(vector)) < 0.3] = np.nan
        vector[1] *= random.lognormal(0, 2)
    golden = golden.astype(np.float32)
    outputs = booster.predict(xgboost.DMatrix(golden)).reshape(len(golden), len(QUANTILES))

    def absent(value):
        return None if math.isnan(value) else float(value)

    return {
        "format": FORMAT,
        "version": VERSION,
        "target": TARGET,
        "quantiles": QUANTILES,
        "features": described,
        "training": {
            "rows": len(transfers),
            "synthetic_rows": sum(one.synthetic for one in transfers),
            "from_unix_seconds": min(one.started for one in transfers),
            "until_unix_seconds": max(one.end for one in transfers),
            "sha256": sha256,
            "seed": seed,
            "rounds": rounds,
            "xgboost": xgboost.__version__,
        },
        "evaluation": evaluation,
        "golden": [
            {"input": [absent(value) for value in vector], "output": [float(value) for value in output]}
            for vector, output in zip(golden, outputs, strict=True)
        ],
        "model": json.loads(bytes(booster.save_raw("json"))),
    }


def shown(report: dict) -> str:
    lines = []
    kind = "SYNTHETIC rows: no accuracy of real transfers" if report["synthetic"] else "measured transfers"
    lines.append(f"{report['transfers']} transfers of {report['pairs']} pairs ({kind})")
    for reason, count in sorted(report["left_out"].items()):
        lines.append(f"left out: {count} ({reason})")
    floor = report["noise_floor"]
    if floor:
        lines.append(
            f"noise floor: NRMSE by mean {floor['nrmse_by_mean']:.3f}, from {floor['transfers']} transfers in "
            f"{floor['groups']} groups of repeats"
        )
    else:
        lines.append("noise floor: unknown, no transfers repeat each other")
    for name, result in report["evaluation"].items():
        if result is None:
            lines.append(f"{name}: too few transfers or pairs")
            continue
        lines.append(
            f"{name}: {result['test_transfers']} test transfers, "
            f"{result['share_between_p10_and_p90']:.2f} of them between P10 and P90"
        )
        lines.append("  method                           NRMSE by mean  by range  by deviation  median error")
        for method, one in result["scores"].items():
            errors = [one["nrmse_by_mean"], one["nrmse_by_range"], one["nrmse_by_deviation"]]
            mean, spread, deviation = ("-" if error is None else f"{error:.3f}" for error in errors)
            lines.append(
                f"  {method:32} {mean:>13} {spread:>9} {deviation:>13} "
                f"{one['median_absolute_percentage_error']:11.1f} %"
            )
    return "\n".join(lines)


def report_of(transfers: list[Transfer], left_out: dict[str, int], sets: dict, seed: int, rounds: int) -> dict:
    splits = {"rolling origin": rolling_origin(transfers), "other pairs": by_pair(transfers)}
    return {
        "transfers": len(transfers),
        "pairs": len({one.pair for one in transfers}),
        "synthetic": any(one.synthetic for one in transfers),
        "left_out": left_out,
        "noise_floor": noise_floor(transfers),
        "evaluation": {name: evaluate(parts, sets, seed, rounds) if parts else None for name, parts in splits.items()},
    }


def read_all(args: argparse.Namespace) -> tuple[list[Transfer], dict[str, int], str]:
    """Transfers of all files in time, counts of rows that are left out, and the SHA-256 of the files."""
    transfers, left_out, sha256 = [], defaultdict(int), hashlib.sha256()
    for path in args.files:
        sha256.update(path.read_bytes())
        found, without = history.read_export(path)
        transfers += found
        for reason, count in without.items():
            left_out[reason] += count
    transfers.sort(key=lambda one: one.started)
    if len(transfers) < ROWS_MIN:
        raise FileError(
            f"{len(transfers)} usable transfers, and {ROWS_MIN} are needed: forecasts without a model need 5 of a pair "
            "(penstock tune predict)"
        )
    history.add_features(transfers)
    return transfers, dict(left_out), sha256.hexdigest()


def run_gridftp(args: argparse.Namespace) -> dict:
    """Evaluates each file alone: each has its own time."""
    reports = {}
    for path in args.files:
        transfers, left_out = history.read_gridftp(path)
        if len(transfers) < ROWS_MIN:
            print(f"{path}: {len(transfers)} usable transfers, and {ROWS_MIN} are needed")
            continue
        history.add_features(transfers)
        reports[path.name] = report_of(transfers, left_out, GRIDFTP, args.seed, args.rounds)
        print(f"{path}: {shown(reports[path.name])}")
    return reports


def run_history(args: argparse.Namespace) -> dict:
    transfers, left_out, sha256 = read_all(args)
    report = report_of(transfers, left_out, ABLATION, args.seed, args.rounds)
    print(shown(report))
    if args.model:
        model = bundle(transfers, sha256, args.seed, args.rounds, report)
        args.model.write_text(json.dumps(model, separators=(",", ":"), allow_nan=False) + "\n")
        print(f"{args.model}: from {len(transfers)} transfers, {args.model.stat().st_size} bytes")
    return report


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument(
        "--gridftp", action="store_true", help="the files are GridFTP histories of Falcon: evaluate only"
    )
    parser.add_argument("--model", type=Path, help="model file to write")
    parser.add_argument("--report", type=Path, help="evaluation to write, as JSON")
    parser.add_argument("--seed", type=int, default=20, help="seed of the training (20)")
    parser.add_argument("--rounds", type=int, default=150, help="trees for each quantile (150)")
    args = parser.parse_args(arguments)
    if args.gridftp and args.model:
        parser.error("GridFTP histories lack most features: no model is made of them")
    return history.run_reported("train.py", run_gridftp if args.gridftp else run_history, args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
