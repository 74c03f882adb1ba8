"""Writes the models of sequences in the test data of core/forecast: one of each kind, from synthetic traces.

    cargo run -p penstock-transfer-model --example traces -- 80 > traces.jsonl
    python3 sequence_golden.py traces.jsonl ../../core/forecast/tests/data

The same versions of the packages give the same files on the same machine.
"""

import sys
from pathlib import Path

import sequence


def main(arguments: list[str]) -> None:
    traces, directory = Path(arguments[0]), Path(arguments[1])
    for kind in sequence.KINDS:
        model = directory / f"sequence-{kind}.safetensors"
        assert sequence.main([str(traces), "--kind", kind, "--model", str(model)]) == 0


if __name__ == "__main__":
    main(sys.argv[1:])
