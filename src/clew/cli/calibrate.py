"""clew calibrate"""

import sys

from rich.console import Console

from clew.base.texts import counted
from clew.cli.commands import Call, read_command
from clew.cli.printing import print_line
from clew.cli.signals import log_to_stderr
from clew.hallucination.workflow import calibrate
from clew.hallucination.workflow.calibrating import CalibrationResult, PromiseResult

COMMAND = read_command(calibrate)


def run(call: Call) -> None:
    log_to_stderr()
    result = call.run(calibrate)
    if call.as_json:
        call.print_json(result.as_dict())
    elif isinstance(result, PromiseResult):
        _print_promise(call.console, result)
    else:
        _print_calibration(call.console, result)
    if isinstance(result, PromiseResult) and result.promise is None:
        sys.exit(1)


def _print_promise(console: Console, result: PromiseResult) -> None:
    print_line(console, f"{'promise: ' if result.promise else ''}{result.text}")
    if result.report is not None:
        print_line(console, f"curve: {result.report}")
    if result.promise is not None:
        print_line(console, f"detector: {result.path}")


def _print_calibration(console: Console, result: CalibrationResult) -> None:
    far = f", {result.out_of_distribution:,} of them not familiar"
    excluded = f"; {result.excluded:,} excluded (no label, or not checked)"
    print_line(
        console,
        f"calibrated on {counted(result.answers, 'answer')}"
        f"{far if result.out_of_distribution else ''}{excluded if result.excluded else ''}",
    )
    print_line(
        console,
        f"calibration error (ECE): {result.ece_before:.3f} before, {result.ece_after:.3f} after",
    )
    print_line(
        console,
        f"threshold: {result.threshold_before:.3f} before, {result.threshold_after:.3f} after",
    )
    precision = "" if result.precision is None else f", precision {result.precision:.1%}"
    print_line(
        console,
        f"with this threshold, on these answers: recall {result.recall:.1%}{precision}, "
        f"false positive rate {result.false_positive_rate:.1%}",
    )
    print_line(console, f"detector: {result.path}")
