"""clew calibrate"""

from clew.base.texts import counted
from clew.cli.commands import Call, read_command
from clew.cli.printing import print_line
from clew.hallucination.workflow import calibrate

COMMAND = read_command(calibrate)


def run(call: Call) -> None:
    result = calibrate(**call.settings)
    if call.as_json:
        call.print_json(result.as_dict())
        return
    far = f", {result.out_of_distribution:,} of them not familiar"
    excluded = f"; {result.excluded:,} excluded (no label, or not checked)"
    print_line(
        call.console,
        f"calibrated on {counted(result.answers, 'answer')}"
        f"{far if result.out_of_distribution else ''}{excluded if result.excluded else ''}",
    )
    print_line(
        call.console,
        f"calibration error (ECE): {result.ece_before:.3f} before, {result.ece_after:.3f} after",
    )
    print_line(
        call.console,
        f"threshold: {result.threshold_before:.3f} before, {result.threshold_after:.3f} after",
    )
    precision = "" if result.precision is None else f", precision {result.precision:.1%}"
    print_line(
        call.console,
        f"with this threshold, on these answers: recall {result.recall:.1%}{precision}, "
        f"false positive rate {result.false_positive_rate:.1%}",
    )
    print_line(call.console, f"detector: {result.path}")
