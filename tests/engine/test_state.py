"""Which epoch is the best."""

import pytest

from clew.engine.state import RunState


@pytest.mark.parametrize(
    ("accuracy", "loss", "is_better"),
    [(0.91, 2.0, True), (0.9, 0.4, True), (0.9, 0.5, False), (0.9, 0.6, False), (0.8, 0.1, False)],
)
def test_loss_decides_between_epochs_of_equal_accuracy(
    accuracy: float, loss: float, is_better: bool
) -> None:
    state = RunState()
    assert state.consider({"accuracy": 0.9, "loss": 0.5}, None, "accuracy")
    assert state.consider({"accuracy": accuracy, "loss": loss}, None, "accuracy") is is_better
