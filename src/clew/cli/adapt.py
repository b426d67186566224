"""clew adapt"""

from collections.abc import Sequence
from functools import partial

from clew.base.texts import counted
from clew.cli.commands import Call, read_command
from clew.cli.printing import print_line
from clew.cli.signals import log_to_stderr
from clew.hallucination.workflow import adapt

COMMAND = read_command(adapt)


def run(call: Call) -> None:
    log_to_stderr()
    result, say = call.run(adapt), partial(print_line, call.console)
    if call.as_json:
        call.print_json(result.as_dict())
        return
    others = f" and {result.unlabeled:,} without a label" if result.unlabeled else ""
    excluded = f"; {result.excluded:,} excluded (not checked)" if result.excluded else ""
    say(
        f"adapted to {counted(result.labels, 'labeled answer')} ({result.hallucinated:,} "
        f"hallucinated){others}{excluded}"
    )
    if result.kept_ranking is not None:
        say(f"the ranking is as before: {result.kept_ranking}")
    if result.auroc_after is not None:
        before = _figure(result.auroc_before, result.auroc_before_ci)
        after = _figure(result.auroc_after, result.auroc_after_ci)
        say(f"AUROC on those that nothing was fitted on: {before} before, {after} after")
        say(f"what the labels bought: {_figure(result.gain, result.gain_ci, sign='+')}")
        errors = f"{result.ece_before:.3f} before, {result.ece_after:.3f} after"
        say(f"calibration error (ECE): {errors}")
    say(f"threshold: {result.threshold_before:.3f} before, {result.threshold_after:.3f} after")
    say(f"detector: {result.path}")


def _figure(value: float, interval: Sequence[float], sign: str = "-") -> str:
    low, high = interval
    return f"{value:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"
