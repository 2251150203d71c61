"""Measures twostep on one GPU, beside what the GPU can do. See docs/gpu.md; without a GPU, --dry shows that every line runs."""

import argparse
import sys
from collections.abc import Sequence

from twostep.benchmarks.gpu_rows.stand_in import stand_in_for_pydantic

stand_in_for_pydantic()

from twostep.benchmarks.gpu_rows.kernel_checks import kernel_checks  # noqa: E402 - see there
from twostep.benchmarks.gpu_rows.model_rows import ModelBench, same_answers  # noqa: E402
from twostep.benchmarks.gpu_rows.pair import handed_over  # noqa: E402
from twostep.benchmarks.gpu_rows.peaks import Peaks  # noqa: E402
from twostep.benchmarks.gpu_rows.stage import LLAMA, QWEN, Stage, dry_stage, gpu_stage  # noqa: E402
from twostep.benchmarks.harness.command import Benchmark, run  # noqa: E402


def gpu_benchmark(stage: Stage) -> Benchmark:
    """Return all that is measured there."""
    peaks = Peaks(stage)
    models = [measurement for name in (QWEN, LLAMA) for measurement in ModelBench(name, stage, peaks).measurements()]
    return Benchmark("h200", peaks.measured(), [same_answers(stage), *models, handed_over(stage), kernel_checks(stage)])


def main(argv: Sequence[str]) -> int:
    """Run as a command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/gpu.py",
        allow_abbrev=False,
        epilog="Takes --quick, --json FILE and --only TEXT, too, as the other benchmarks do.",
    )
    parser.add_argument("--dry", action="store_true", help="tiny shapes on a CPU: every line runs, nothing is measured")
    arguments, rest = parser.parse_known_args(argv)
    return run(gpu_benchmark(dry_stage() if arguments.dry else gpu_stage()), rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
