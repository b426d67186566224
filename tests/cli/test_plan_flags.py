"""The flags of the hardware plan: one declaration, one request."""

from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner

from clew.cli.plan_flags import with_plan_flags
from clew.engine import PlanRequest

if TYPE_CHECKING:
    from clew.engine import PlanRequest as Request  # as in the commands: not there at run time


def request_of(*words: str, without: tuple[str, ...] = ()) -> PlanRequest:
    found = []

    @with_plan_flags(without=without)
    def command(epochs: int = 3, *, request: "Request", as_json: bool = False) -> None:
        assert (epochs, as_json) == (5, True)
        found.append(request)

    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, ["--epochs", "5", "--as-json", *words])
    assert result.exit_code == 0, result.output
    return found[0]


@pytest.mark.parametrize(
    ("words", "request_"),
    [
        ("", PlanRequest()),
        ("--use-amp --no-compile", PlanRequest(amp=True, compile=False)),
        ("--no-amp --use-compile", PlanRequest(amp=False, compile=True)),
        ("--device cpu --no-cuda-graph", PlanRequest(device="cpu", cuda_graph=False)),
        ("--no-channels-last", PlanRequest(channels_last=False)),
        ("--num-workers 0 --max-cache-batches 2", PlanRequest(num_workers=0, max_cache_batches=2)),
        (
            "--batch-size 8 --grad-accum 4 --use-gradient-checkpointing",
            PlanRequest(batch_size=8, grad_accum=4, gradient_checkpointing=True),
        ),
    ],
)
def test_flags_make_the_request(words: str, request_: PlanRequest) -> None:
    assert request_of(*words.split()) == request_


def test_command_offers_only_the_flags_that_mean_something_to_it() -> None:
    assert request_of("--device", "cpu", without=("grad_accum",)) == PlanRequest(device="cpu")
    with pytest.raises(AssertionError, match="No such option: --grad-accum"):
        request_of("--grad-accum", "2", without=("grad_accum",))
