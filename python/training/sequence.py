"""Trains models of the rate of a running transfer in its next seconds from its last 30 s, and compares them.

    python3 sequence.py TRACE [TRACE ...] --report report.json --model sequence.safetensors

A trace is JSONL with a sample of the tuner a line, such as `cargo run -p penstock-transfer-model --example traces`
writes, or what `penstock transfers show ID --why --json` prints, which has rate and streams alone. Files and the traces
in them are in order of time: a model is tested with traces that are later than all of its own. The default kind is the
one with the least error; of kinds whose difference is within its 95 % interval, the simplest. The same seed gives the
same file on the same machine.
"""

import argparse
import json
import os
import sys
from pathlib import Path

# One thread: sums of several are not the same each time.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from safetensors.numpy import save
except ImportError as error:
    sys.exit(f"sequence.py: {error}: use the Python of make sequence-training")

import traces as reader
from features import FileError, run_reported
from traces import COLUMNS, NAMES, Trace

jax.config.update("jax_enable_x64", True)

FORMAT, VERSION = "penstock-sequence", 1
TARGET = "rate_by_window_mean"
QUANTILES = [0.1, 0.5, 0.9]

#: From the simplest to the most complex.
KINDS = ["last", "linear", "lstm", "bilstm"]

#: Samples that a model sees, and seconds over whose mean rate it says something.
WINDOW, HORIZONS = 30, [1, 5]
OUTPUTS = len(HORIZONS) * len(QUANTILES)

#: Cells of an LSTM in each direction.
HIDDEN = 16

#: Seconds between two windows of a trace, in training and in tests.
TRAIN_STRIDE, TEST_STRIDE = 4, 3

#: Parts in time of the rolling origin: the first is for training alone.
FOLDS = 3

#: Fewest traces from which a model is trained.
TRACES_MIN = 20

#: Golden vectors of a model file.
GOLDEN = 8

BATCH = 256
EPOCHS = 20
LEARNING_RATE = {"linear": 3e-3, "lstm": 6e-3, "bilstm": 6e-3}

#: Least reduction of the spread of a feature that counts.
DEVIATION_MIN = 1e-9


class Windows:
    """Windows of traces: samples, the means of the following seconds, and what the errors are divided by."""

    def __init__(self, traces: list[Trace], columns: list[str], stride: int):
        at = [NAMES.index(name) for name in columns]
        inputs, targets, truths, of_trace, means = [], [], [], [], []
        for number, trace in enumerate(traces):
            rates = trace.intervals[:, 0]
            for end in range(WINDOW, len(rates) - max(HORIZONS) + 1, stride):
                window = trace.intervals[end - WINDOW : end][:, at]
                if window[:, 0].mean() <= 0 or np.isnan(window).any():
                    continue
                inputs.append(window)
                targets.append([rates[end : end + horizon].mean() for horizon in HORIZONS])
                of_trace.append(number)
                means.append(rates.mean())
                if trace.true_bps is not None:
                    truths.append([trace.true_bps[end : end + horizon].mean() for horizon in HORIZONS])
        self.columns = columns
        self.inputs = np.array(inputs).reshape(len(inputs), WINDOW, len(columns))
        self.targets = np.array(targets).reshape(len(inputs), len(HORIZONS))
        self.truths = np.array(truths) if inputs and len(truths) == len(inputs) else None
        self.of_trace = np.array(of_trace, dtype=int)
        self.trace_means = np.array(means)

    def __len__(self) -> int:
        return len(self.inputs)

    def relative(self) -> np.ndarray:
        """Inputs with the rate as a ratio to its mean over the window."""
        relative = self.inputs.copy()
        relative[:, :, 0] /= self.window_means()[:, None]
        return relative

    def window_means(self) -> np.ndarray:
        return self.inputs[:, :, 0].mean(axis=1)

    def ratios(self) -> np.ndarray:
        return self.targets / self.window_means()[:, None]


def lstm(weights: dict, name: str, inputs: jax.Array) -> jax.Array:
    """Last output of an LSTM (Hochreiter and Schmidhuber 1997, with forget gates), gates in the order i, f, g, o."""
    projected = inputs @ weights[f"{name}.input"].T + weights[f"{name}.bias"]
    hidden = weights[f"{name}.recurrent"].shape[1]

    def step(state, projection):
        output, cell = state
        gates = projection + output @ weights[f"{name}.recurrent"].T
        enter, forget, fresh, leave = (gates[:, at * hidden : (at + 1) * hidden] for at in range(4))
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(fresh)
        return (jax.nn.sigmoid(leave) * jnp.tanh(cell), cell), None

    zero = jnp.zeros((inputs.shape[0], hidden), inputs.dtype)
    (output, _), _ = jax.lax.scan(step, (zero, zero), jnp.swapaxes(projected, 0, 1), unroll=5)
    return output


def outputs_of(kind: str, weights: dict, relative: jax.Array, offset: jax.Array, scale: jax.Array) -> jax.Array:
    """Quantiles of each horizon as ratios to the mean of the window, not sorted."""
    if kind == "last":
        return relative[:, -1, :1] + weights["head.bias"]
    scaled = (relative - offset) / scale
    if kind == "linear":
        seen = scaled.reshape(len(scaled), -1)
    elif kind == "lstm":
        seen = lstm(weights, "forward", scaled)
    else:
        seen = jnp.concatenate([lstm(weights, "forward", scaled), lstm(weights, "backward", scaled[:, ::-1])], axis=1)
    return seen @ weights["head.weight"].T + weights["head.bias"]


compiled_outputs = jax.jit(outputs_of, static_argnums=0)


def initial(kind: str, features: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)

    def uniform(*shape: int, bound: float) -> np.ndarray:
        return random.uniform(-bound, bound, shape).astype(np.float32)

    bound = HIDDEN**-0.5
    weights = {}
    for name in {"linear": [], "lstm": ["forward"], "bilstm": ["forward", "backward"]}[kind]:
        weights[f"{name}.input"] = uniform(4 * HIDDEN, features, bound=bound)
        weights[f"{name}.recurrent"] = uniform(4 * HIDDEN, HIDDEN, bound=bound)
        bias = np.zeros(4 * HIDDEN, dtype=np.float32)
        bias[HIDDEN : 2 * HIDDEN] = 1
        weights[f"{name}.bias"] = bias
    seen = {"linear": WINDOW * features, "lstm": HIDDEN, "bilstm": 2 * HIDDEN}[kind]
    weights["head.weight"] = uniform(OUTPUTS, seen, bound=0.1 * seen**-0.5)
    weights["head.bias"] = np.ones(OUTPUTS, dtype=np.float32)
    return weights


def pinball(outputs: jax.Array, ratios: jax.Array) -> jax.Array:
    """Mean quantile loss (Koenker and Bassett 1978) over horizons and quantiles."""
    error = ratios[:, :, None] - outputs.reshape(-1, len(HORIZONS), len(QUANTILES))
    levels = jnp.array(QUANTILES, dtype=outputs.dtype)
    return jnp.mean(jnp.maximum(levels * error, (levels - 1) * error))


class Model:
    """A trained model of one kind."""

    def __init__(self, kind: str, known: list[Trace], columns: list[str], seed: int):
        self.kind, self.columns = kind, ["rate_bps"] if kind == "last" else columns
        # The latest tenth of the traces tells when to stop.
        latest = max(1, len(known) // 10)
        train = Windows(known[:-latest], self.columns, TRAIN_STRIDE)
        check = Windows(known[-latest:], self.columns, TRAIN_STRIDE)
        values = train.relative().reshape(-1, len(self.columns))
        self.offset, deviation = values.mean(axis=0), values.std(axis=0)
        self.scale = np.where(deviation > DEVIATION_MIN, deviation, 1.0)
        both = np.concatenate([train.inputs, check.inputs]).reshape(-1, len(self.columns))
        self.low, self.high = both.min(axis=0), both.max(axis=0)
        self.windows = len(train) + len(check)
        self.weights = self.last(train) if kind == "last" else self.fit(train, check, seed)

    def last(self, train: Windows) -> dict[str, np.ndarray]:
        """The last value with the quantiles of its errors; its median is the last value itself."""
        errors = train.ratios() - train.relative()[:, -1, :1]
        offsets = np.quantile(errors, QUANTILES, axis=0).T
        offsets[:, QUANTILES.index(0.5)] = 0
        return {"head.bias": offsets.reshape(-1).astype(np.float32)}

    def fit(self, train: Windows, check: Windows, seed: int) -> dict[str, np.ndarray]:
        """Adam (Kingma and Ba 2015) with a falling rate; the weights of the epoch with the least loss on `check`."""
        offset, scale = (jnp.array(one, dtype=jnp.float32) for one in (self.offset, self.scale))
        inputs, ratios = (jnp.array(one, dtype=jnp.float32) for one in (train.relative(), train.ratios()))
        test = [jnp.array(one, dtype=jnp.float32) for one in (check.relative(), check.ratios())]
        weights = {name: jnp.array(one) for name, one in initial(self.kind, len(self.columns), seed).items()}
        batches = max(1, len(train) // BATCH)
        size = min(BATCH, len(train))

        def loss(weights, inputs, ratios):
            return pinball(outputs_of(self.kind, weights, inputs, offset, scale), ratios)

        def update(state, batch):
            weights, mean, square, step = state
            gradient = jax.grad(loss)(weights, *batch)
            step += 1
            rate = LEARNING_RATE[self.kind] * 0.5 * (1 + jnp.cos(jnp.pi * step / (EPOCHS * batches + 1)))
            mean = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, mean, gradient)
            square = jax.tree.map(lambda old, new: 0.999 * old + 0.001 * new**2, square, gradient)
            move = rate * jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            weights = jax.tree.map(
                lambda weight, m, s: (weight - move * m / (jnp.sqrt(s) + 1e-8)).astype(jnp.float32),
                weights,
                mean,
                square,
            )
            return (weights, mean, square, step), None

        epoch = jax.jit(lambda state, *data: jax.lax.scan(update, state, data)[0])
        check_loss = jax.jit(loss)
        zeros = jax.tree.map(jnp.zeros_like, weights)
        state = (weights, zeros, zeros, jnp.array(0.0, dtype=jnp.float32))
        random, best = np.random.default_rng(seed), (np.inf, weights)
        for _ in range(EPOCHS):
            order = random.permutation(len(train))[: batches * size].reshape(batches, size)
            state = epoch(state, inputs[order], ratios[order])
            best = min(best, (float(check_loss(state[0], *test)), state[0]), key=lambda one: one[0])
        return {name: np.asarray(one, dtype=np.float32) for name, one in best[1].items()}

    def quantiles(self, windows: Windows) -> np.ndarray:
        """Rates in bit/s: windows, horizons, quantiles in order."""
        ratios = np.concatenate(
            [self.outputs(part) for part in np.array_split(windows.relative(), max(1, len(windows) // 4096))]
        )
        ratios = np.sort(ratios.reshape(-1, len(HORIZONS), len(QUANTILES)), axis=2)
        return np.maximum(ratios, 0) * windows.window_means()[:, None, None]

    def outputs(self, relative: np.ndarray) -> np.ndarray:
        weights = {name: jnp.array(one, dtype=jnp.float64) for name, one in self.weights.items()}
        outputs = compiled_outputs(
            self.kind, weights, jnp.array(relative), jnp.array(self.offset), jnp.array(self.scale)
        )
        return np.asarray(outputs)

    def write(self, path: Path, known: list[Trace], sha256: str, seed: int) -> None:
        """The model file: docs/forecast.md describes it."""
        windows = Windows(known, self.columns, TRAIN_STRIDE)
        chosen = np.linspace(0, len(windows) - 1, GOLDEN).astype(int)
        golden = windows.inputs[chosen].astype(np.float32)
        relative = golden.astype(np.float64)
        relative[:, :, 0] /= relative[:, :, 0].mean(axis=1)[:, None]
        units = dict(COLUMNS)
        described = {
            "format": FORMAT,
            "version": VERSION,
            "kind": self.kind,
            "target": TARGET,
            "quantiles": QUANTILES,
            "interval_s": 1,
            "window": WINDOW,
            "horizons_s": HORIZONS,
            "features": [
                {
                    "name": name,
                    "unit": units[name],
                    "offset": float(self.offset[at]),
                    "scale": float(self.scale[at]),
                    "low": float(self.low[at]),
                    "high": float(self.high[at]),
                }
                for at, name in enumerate(self.columns)
            ],
            "training": {
                "traces": len(known),
                "synthetic_traces": sum(one.synthetic for one in known),
                "windows": self.windows,
                "sha256": sha256,
                "seed": seed,
                "jax": jax.__version__,
            },
        }
        tensors = self.weights | {"golden.input": golden, "golden.output": self.outputs(relative)}
        model = save(
            {name: np.ascontiguousarray(one) for name, one in tensors.items()},
            metadata={"penstock": json.dumps(described, separators=(",", ":"), allow_nan=False)},
        )
        path.write_bytes(model)


def baselines(windows: Windows) -> dict[str, np.ndarray]:
    """Forecasts without training: the mean of the window, and a moving average that halves weights in two seconds."""
    rates = windows.inputs[:, :, 0]
    weights = 0.5 ** (np.arange(WINDOW)[::-1] / 2)
    moving = rates @ (weights / weights.sum())
    return {
        "mean of window": np.repeat(rates.mean(axis=1)[:, None], len(HORIZONS), axis=1),
        "moving average": np.repeat(moving[:, None], len(HORIZONS), axis=1),
    }


class Tested:
    """Forecasts and outcomes of all test parts."""

    def __init__(self):
        self.guesses: dict[str, list[np.ndarray]] = {}
        self.bands: dict[str, list[np.ndarray]] = {}
        self.targets: list[np.ndarray] = []
        self.means: list[np.ndarray] = []
        self.of_trace: list[np.ndarray] = []
        self.variations: list[str] = []

    def add(self, windows: Windows, traces: list[Trace], models: dict[str, Model]) -> None:
        self.targets.append(windows.targets)
        self.means.append(windows.trace_means)
        self.of_trace.append(windows.of_trace + len(self.variations))
        self.variations += [one.variation for one in traces]
        guesses = baselines(windows)
        if windows.truths is not None:
            guesses["noise floor"] = windows.truths
        for name, model in models.items():
            columns = [windows.columns.index(column) for column in model.columns]
            part = Windows([], model.columns, TEST_STRIDE)
            part.inputs = windows.inputs[:, :, columns]
            quantiles = model.quantiles(part)
            guesses[name] = quantiles[:, :, 1]
            self.bands.setdefault(name, []).append(quantiles)
        for name, guess in guesses.items():
            self.guesses.setdefault(name, []).append(guess)

    def report(self) -> dict:
        targets, means = np.concatenate(self.targets), np.concatenate(self.means)
        of_trace = np.concatenate(self.of_trace)
        variations = np.array(self.variations)[of_trace]
        errors = {name: np.concatenate(parts) - targets for name, parts in self.guesses.items()}
        last = np.sqrt(np.mean((errors["last"] / means[:, None]) ** 2, axis=0))
        methods = {}
        for name, error in errors.items():
            relative = error / means[:, None]
            rms = np.sqrt(np.mean(relative**2, axis=0))
            pooled = np.sqrt(np.mean(error**2, axis=0))
            methods[name] = {
                "nrmse_by_trace_mean": rms.tolist(),
                "interval_95": [interval(relative[:, at], of_trace) for at in range(len(HORIZONS))],
                "nrmse_by_mean": (pooled / targets.mean(axis=0)).tolist(),
                "nrmse_by_range": (pooled / np.ptp(targets, axis=0)).tolist(),
                "nrmse_by_deviation": (pooled / targets.std(axis=0)).tolist(),
                "skill_over_last": (1 - rms / last).tolist(),
                "by_variation": {
                    str(one): np.sqrt(np.mean(relative[variations == one] ** 2, axis=0)).tolist()
                    for one in np.unique(variations)
                },
            }
            if name in self.bands:
                bands = np.concatenate(self.bands[name])
                inside = (bands[:, :, 0] <= targets) & (targets <= bands[:, :, 2])
                miss = (targets[:, :, None] - bands) / means[:, None, None]
                loss = np.maximum(np.array(QUANTILES) * miss, (np.array(QUANTILES) - 1) * miss)
                methods[name]["share_between_p10_and_p90"] = inside.mean(axis=0).tolist()
                methods[name]["pinball_by_trace_mean"] = loss.mean(axis=(0, 2)).tolist()
        return {
            "test_windows": len(targets),
            "test_traces": len(np.unique(of_trace)),
            "methods": methods,
            "winner": winner(errors, means, of_trace),
        }


def interval(relative: np.ndarray, of_trace: np.ndarray) -> list[float]:
    """95 % interval of the root mean square by a bootstrap over traces."""
    means = resampled(relative**2, of_trace)
    return np.sqrt(np.quantile(means, [0.025, 0.975])).tolist()


def resampled(values: np.ndarray, of_trace: np.ndarray) -> np.ndarray:
    """Means of values in 1,000 resamples of the traces."""
    sums, counts = np.bincount(of_trace, values), np.bincount(of_trace)
    chosen = np.random.default_rng(20).integers(0, len(sums), (1000, len(sums)))
    return sums[chosen].sum(axis=1) / np.maximum(1, counts[chosen].sum(axis=1))


def winner(errors: dict[str, np.ndarray], means: np.ndarray, of_trace: np.ndarray) -> str:
    """Kind of the least error over all horizons; a simpler one if the difference may be chance."""
    squares = {kind: np.mean((errors[kind] / means[:, None]) ** 2, axis=1) for kind in KINDS if kind in errors}
    best = min(squares, key=lambda kind: squares[kind].mean())
    for kind, square in squares.items():
        if np.quantile(resampled(square - squares[best], of_trace), 0.025) <= 0:
            return kind
    return best


def evaluate(traces: list[Trace], columns: list[str], kinds: list[str], seed: int) -> dict:
    """Rolling origin: each part in time after the first is tested with models of all traces before it."""
    tested = Tested()
    # As much for the first training as for all tests.
    parts = np.array_split(np.arange(len(traces)), 2 * FOLDS)[FOLDS:]
    for part in parts:
        known, later = traces[: part[0]], [traces[at] for at in part]
        models = {kind: Model(kind, known, columns, seed) for kind in kinds}
        tested.add(Windows(later, columns, TEST_STRIDE), later, models)
        print(f"trained with {len(known)} traces, tested with {len(later)}", file=sys.stderr)
    return tested.report()


def shown(report: dict) -> str:
    kind = "SYNTHETIC traces: no accuracy of real transfers" if report["synthetic_traces"] else "measured transfers"
    lines = [f"{report['traces']} traces ({kind}), features {', '.join(report['features'])}"]
    lines += [f"left out: {count} ({reason})" for reason, count in sorted(report["left_out"].items())]
    result = report["evaluation"]
    lines.append(f"rolling origin: {result['test_windows']} windows of {result['test_traces']} later traces")
    for at, horizon in enumerate(HORIZONS):
        lines.append(f"mean rate of the next {horizon} s")
        lines.append(
            "  method          NRMSE by trace mean  (95 % interval)  by mean  by range  by deviation  skill  inside"
        )
        for name, one in result["methods"].items():
            low, high = one["interval_95"][at]
            inside = one.get("share_between_p10_and_p90")
            lines.append(
                f"  {name:15} {one['nrmse_by_trace_mean'][at]:19.4f}  ({low:.4f} - {high:.4f}) "
                f"{one['nrmse_by_mean'][at]:8.4f} {one['nrmse_by_range'][at]:9.4f} "
                f"{one['nrmse_by_deviation'][at]:13.4f} "
                f"{one['skill_over_last'][at]:6.3f}  {'-' if inside is None else format(inside[at], '.2f')}"
            )
    for name, one in result["methods"].items():
        by = "  ".join(f"{variation} {errors[0]:.4f}" for variation, errors in one["by_variation"].items())
        lines.append(f"  {name:15} next {HORIZONS[0]} s by variation: {by}")
    lines.append(f"default: {result['winner']}")
    return "\n".join(lines)


def usable(traces: list[Trace], columns: list[str]) -> tuple[list[Trace], int]:
    """Traces that are long enough, move data and have all columns."""
    at = [NAMES.index(name) for name in columns]
    good = [
        one for one in traces if not np.isnan(one.intervals[:, at]).any() and len(Windows([one], columns, TRAIN_STRIDE))
    ]
    return good, len(traces) - len(good)


def run(args: argparse.Namespace) -> dict:
    columns = args.features.split(",") if args.features else NAMES
    unknown = [name for name in columns if name not in NAMES]
    if unknown or columns[0] != "rate_bps" or len(set(columns)) != len(columns):
        raise FileError(f"--features begins with rate_bps, followed by some of {', '.join(NAMES[1:])}")
    traces, left_out, sha256 = reader.read(args.traces)
    traces, without = usable(traces, columns)
    if without:
        left_out[f"shorter than {WINDOW + max(HORIZONS)} s, at rest, or without a feature"] = without
    if len(traces) < TRACES_MIN:
        raise FileError(
            f"{len(traces)} usable traces, and {TRACES_MIN} are needed: give more files, or fewer --features "
            "(rate_bps,streams for those of penstock transfers show)"
        )
    report = {
        "traces": len(traces),
        "synthetic_traces": sum(one.synthetic for one in traces),
        "left_out": left_out,
        "features": columns,
    }
    if args.kind is None or args.report:
        report["evaluation"] = evaluate(traces, columns, KINDS, args.seed)
        print(shown(report))
    if args.model:
        kind = args.kind or report["evaluation"]["winner"]
        Model(kind, traces, columns, args.seed).write(args.model, traces, sha256, args.seed)
        print(f"{args.model}: {kind}, from {len(traces)} traces, {args.model.stat().st_size} bytes")
    return report


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    parser.add_argument("--model", type=Path, help="model file to write, of the kind with the least error")
    parser.add_argument("--kind", choices=KINDS, help="kind to write, without a comparison")
    parser.add_argument("--report", type=Path, help="comparison to write, as JSON")
    parser.add_argument("--features", help=f"columns to use, with commas ({','.join(NAMES)})")
    parser.add_argument("--seed", type=int, default=20, help="seed of the training (20)")
    args = parser.parse_args(arguments)
    return run_reported("sequence.py", run, args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
