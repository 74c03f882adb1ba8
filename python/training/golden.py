"""Writes the test data of core/forecast: a model file from synthetic rows, small models of XGBoost, their predictions.

    python3 golden.py ../../core/forecast/tests/data

The same versions of the packages give the same files.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import synthetic
import train
import xgboost

#: Parameters of models that differ in what their files hold.
MODELS = {
    "squared error": {"objective": "reg:squarederror", "max_depth": 4},
    "given base score": {"objective": "reg:squarederror", "base_score": 7.25, "max_depth": 2},
    "absolute error": {"objective": "reg:absoluteerror", "max_depth": 3},
    "pseudo Huber error": {"objective": "reg:pseudohubererror", "max_depth": 3},
    "quantiles": {"objective": "reg:quantileerror", "quantile_alpha": [0.1, 0.5, 0.9], "max_depth": 3},
    "pruned nodes": {"objective": "reg:squarederror", "tree_method": "exact", "gamma": 6.0, "max_depth": 6},
    "growth by loss": {"objective": "reg:squarederror", "grow_policy": "lossguide", "max_leaves": 9, "max_depth": 0},
    "forest": {"objective": "reg:squarederror", "num_parallel_tree": 3, "subsample": 0.5, "max_depth": 3},
}

FEATURES, ROWS, ROUNDS, VECTORS = 4, 300, 3, 24


def small_models() -> list[dict]:
    random = np.random.default_rng(20)
    values = random.normal(size=(ROWS, FEATURES)).astype(np.float32)
    truth = values[:, 0] * 2 + np.where(values[:, 1] > 0.3, 3, 0) + random.normal(size=ROWS) * 0.3
    values[random.random(values.shape) < 0.15] = np.nan
    data = xgboost.DMatrix(values, label=truth)
    inputs = random.normal(size=(VECTORS, FEATURES)).astype(np.float32) * 2
    inputs[random.random(inputs.shape) < 0.25] = np.nan
    # Values of conditions themselves go right.
    inputs[:8] = values[:8]
    models = []
    for name, parameters in MODELS.items():
        booster = xgboost.train({"seed": 20, "nthread": 1, "tree_method": "hist"} | parameters, data, ROUNDS)
        outputs = booster.predict(xgboost.DMatrix(inputs)).reshape(VECTORS, -1)
        model = json.loads(bytes(booster.save_raw("json")))
        for tree in model["learner"]["gradient_booster"]["model"]["trees"]:
            # Not read, and long.
            for key in ("base_weights", "loss_changes", "sum_hessian"):
                tree[key] = []
        models.append(
            {
                "name": name,
                "model": model,
                "inputs": [[None if np.isnan(value) else float(value) for value in row] for row in inputs],
                "outputs": [[float(value) for value in row] for row in outputs],
            }
        )
    return models


def main(arguments: list[str]) -> None:
    directory = Path(arguments[0])
    directory.mkdir(exist_ok=True)
    (directory / "trees.json").write_text(json.dumps(small_models(), separators=(",", ":")) + "\n")
    with tempfile.TemporaryDirectory() as temporary:
        rows = Path(temporary) / "history.csv"
        synthetic.write(rows, 400, 20)
        assert train.main([str(rows), "--model", str(directory / "model.json"), "--rounds", "6"]) == 0


if __name__ == "__main__":
    main(sys.argv[1:])
