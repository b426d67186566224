"""One step: the effect of accumulation, clipping and weight decay."""

from functools import partial
from typing import Any

import pytest
import torch

from clew.base.errors import InputError
from clew.engine import Classifier, TrainConfig
from clew.engine.setup import build_optimizer, one_cycle_lr
from clew.engine.step import EagerStep, build_precision, set_lr
from tests.engine.learning import Points, Samples, new_model, torch_loader


def batches_of(*sizes: int) -> list[dict[str, Any]]:
    samples, found, first = Samples(sum(sizes)), [], 0
    for size in sizes:
        found.append(samples.read_batch(list(range(first, first + size)), None))
        first += size
    return found


def new_step(model: Classifier, **options: Any) -> EagerStep:
    config = TrainConfig(**options)
    return EagerStep(
        model,
        build_optimizer(model, config, lr=0.1),
        precision=build_precision("fp32", torch.device("cpu")),
        max_norm=config.max_norm,
        forward=model.training_step,
    )


def test_micro_batches_of_any_size_equal_one_large_batch() -> None:
    whole, parts = new_model(dropout=0.0), new_model(dropout=0.0)
    one = new_step(whole).run(batches_of(20), 0.1)
    several = new_step(parts).run(batches_of(11, 2, 7), 0.1)
    assert several.samples == one.samples == 20
    assert several.loss.item() == pytest.approx(one.loss.item(), rel=1e-6)
    assert several.gradient_norm.item() == pytest.approx(one.gradient_norm.item(), rel=1e-5)
    for p, q in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-6)


@pytest.mark.parametrize("max_norm", [1e-3, 1e3])
def test_clipping_and_adamw_match_pytorch(max_norm: float) -> None:
    ours, theirs = new_model(dropout=0.0), new_model(dropout=0.0)
    step = new_step(ours, max_norm=max_norm, weight_decay=0.0)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.1, weight_decay=0.0)
    for batch in torch_loader(Samples(64)):
        step.run([batch], 0.1)
        optimizer.zero_grad()
        theirs.training_step(batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
        optimizer.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-4)


def test_weight_decay_skips_biases() -> None:
    model = new_model()
    groups = build_optimizer(model, TrainConfig(), lr=0.1).param_groups
    assert [(g["weight_decay"], {p.dim() for p in g["params"]}) for g in groups] == [
        (1e-4, {2}),
        (0.0, {1}),
    ]
    assert groups[0]["betas"] == (0.9, 0.999)


def test_model_may_scale_the_learning_rate_of_each_parameter() -> None:
    model = new_model()
    first = next(name for name, _ in model.named_parameters()).rpartition(".")[0]
    model.learning_rate_scale = lambda name: 0.5 if name.startswith(first) else 1.0
    optimizer = build_optimizer(model, TrainConfig(), lr=0.1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.1, 0.05, 0.1]
    set_lr(optimizer, 0.4)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            assert group["lr"] == 0.4 * model.learning_rate_scale(names[id(parameter)])


def test_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(InputError, match="no parameters to train"):
        build_optimizer(new_model().requires_grad_(False), TrainConfig(), lr=0.1)


@pytest.mark.slow
def test_compiled_step_gives_the_same_result() -> None:
    """With the backend that requires no compiler: what counts is that the step can be traced."""
    eager, traced = new_model(dropout=0.0), new_model(dropout=0.0)
    step = new_step(traced)
    step._forward = torch.compile(traced.training_step, backend="eager", fullgraph=True)
    results = [new_step(eager).run(batches_of(8), 0.1), step.run(batches_of(8), 0.1)]
    assert results[0].loss.item() == pytest.approx(results[1].loss.item())
    for p, q in zip(eager.parameters(), traced.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-6)


def test_extra_losses_are_added_and_reported() -> None:
    class WithKl(Points):
        def forward(self, batch: dict[str, Any]) -> Any:
            logits = super().forward(batch)
            return logits, {"kl": logits.square().mean()}

    torch.manual_seed(0)
    model = Classifier(WithKl(dropout=0.0))
    plain = Classifier(Points(dropout=0.0))
    plain.load_state_dict(model.state_dict())
    result = new_step(model).run(batches_of(5, 3), 0.1)
    alone = new_step(plain).run(batches_of(5, 3), 0.1)
    assert result.loss.item() == pytest.approx(alone.loss.item() + result.metrics["kl"].item())


def test_one_cycle_rises_and_falls() -> None:
    schedule = partial(one_cycle_lr, peak=1.0, total_steps=101, warmup_fraction=0.1)
    rates = [schedule(step) for step in range(101)]
    assert rates[0] == pytest.approx(1 / 25)
    assert max(rates) == rates[10] == 1.0
    assert rates[-1] == pytest.approx(1 / 25e4)
    assert rates[:11] == sorted(rates[:11])
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_one_cycle_matches_pytorch() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.3, total_steps=51, pct_start=11 / 51, cycle_momentum=False
    )
    ours = partial(one_cycle_lr, peak=0.3, total_steps=51, warmup_fraction=10 / 50)
    for step in range(50):
        assert ours(step) == pytest.approx(theirs.get_last_lr()[0], rel=1e-6)
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_one_cycle_works_with_very_few_steps(steps: int) -> None:
    schedule = partial(one_cycle_lr, peak=1.0, total_steps=steps, warmup_fraction=0.0)
    assert all(0 < schedule(step) <= 1 for step in range(steps + 2))
