"""The one loop: steps, epochs, validation, checkpoints, early stopping; and what it does about a
value that is not finite: find the cause, switch away from fp16, or end the run with advice."""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn

from clew.base.errors import TrainingError, TrainingStoppedError
from clew.base.memory import MemoryUse, none_if_out_of_memory
from clew.base.progress import Note, Reporter
from clew.base.texts import counted, list_some
from clew.engine.checkpoint import Checkpoints
from clew.engine.classifier import Metrics, score
from clew.engine.config import Batches
from clew.engine.feed import (
    Group,
    Position,
    count_samples,
    named_tensors,
    same_random_numbers,
    sample_names,
)
from clew.engine.folders import Logs
from clew.engine.processes import gather
from clew.engine.setup import Setup, one_cycle_lr
from clew.engine.state import (
    STEPS_A_READING,
    EpochEnded,
    EpochSums,
    Figures,
    Readings,
    RunState,
    TrainingProgress,
    monitored,
)

_REPORT_EVERY_SECONDS = 0.2
_SAVE_TIMES_APART = 50


# The loss scaler skips a step now and then, more often at first, but never this many in a row.
_MAX_SKIPS = STEPS_A_READING


class Loop:
    """Trains until the last epoch, or until validation stops improving; `state` is its progress."""

    def __init__(
        self,
        setup: Setup,
        validation: Batches | None,
        *,
        state: RunState,
        checkpoints: Checkpoints,
        logs: Logs | None,
        reporter: Reporter,
        should_stop: Callable[[], bool],
    ) -> None:
        self._setup, self._validation, self.state = setup, validation, state
        self._checkpoints, self._logs, self._reporter = checkpoints, logs, reporter
        self._should_stop = should_stop
        self._watch = Watch(setup, reporter)
        self._readings = Readings(setup.fabric.device)
        self._memory = MemoryUse(setup.fabric.device, state.peak_memory_bytes)
        self._lr = partial(
            one_cycle_lr,
            peak=setup.peak_lr,
            total_steps=state.total_steps,
            warmup_fraction=setup.config.warmup_fraction,
        )
        self._group = Group(read=[])
        self._save_seconds = 0.0  # the first epoch is saved, to learn how long saving takes
        self._since = self._saved = self._reported = time.perf_counter()

    def run(self, *, resumed: bool) -> None:
        """Train until the last epoch or early stopping. Raises TrainingStoppedError when asked to
        stop, TrainingError if training cannot continue."""
        self._since = time.perf_counter()
        try:
            while not self.state.is_trained:
                self._setup.feed.open(self.state.position)
                # An epoch that starts from the beginning sets its own seed.
                if resumed and self.state.position.samples:
                    self._checkpoints.restore_random()
                resumed = False
                self._train_epoch()
                self._end_epoch()
                self._stop_between_epochs()
        finally:
            self._setup.feed.close()
            if self._logs is not None:
                self._logs.close()

    def _train_epoch(self) -> None:
        self._setup.model.train()
        while (group := self._setup.feed.next_group()) is not None:
            wishes, due = self._setup.wishes, self._setup.config.checkpoint_every_seconds
            wishes.save = time.perf_counter() - self._saved >= due
            wishes.stop = self._should_stop()
            if self._take_step(group):
                self._after_step()
        self._read_figures()

    def _take_step(self, group: Group) -> bool:
        """Take one step. Returns False if it did not fit in memory: its samples are then read
        again, in smaller batches."""
        lr = self._lr(self.state.step)
        result = none_if_out_of_memory(lambda: self._setup.step.run(group.batches, lr))
        if result is None:
            self._setup.shrink(group, self.state.step)
            self._reporter(Note(self._setup.plan.reasons["batch_size"]))
            return False
        self._setup.feed.step_launched(group)
        self._group = group
        self._readings.add(result)
        self.state.step += 1
        return True

    def _after_step(self) -> None:
        has_read = self._readings.is_full
        if has_read:
            self._read_figures()
        if has_read or self._setup.fabric.world_size == 1:
            self._heed_wishes()
        if time.perf_counter() - self._reported >= _REPORT_EVERY_SECONDS:
            self._report()

    def _heed_wishes(self) -> None:
        stop, save = self._setup.wishes.granted()
        if stop or save:
            self._save()
        if stop:
            raise self._stopped()

    def _stop_between_epochs(self) -> None:
        """Stop here if asked to. On GPUs requests are otherwise checked only when metrics are read,
        which never happens in a short epoch."""
        if not self.state.is_trained and any(gather(self._setup.fabric, self._should_stop())):
            self._write_checkpoint()
            raise self._stopped()

    def _stopped(self) -> TrainingStoppedError:
        return TrainingStoppedError(
            f"stopped in epoch {self.state.epoch + 1}, after step {self.state.step:,} of "
            f"{self.state.total_steps:,}; everything so far is saved."
        )

    def _read_figures(self) -> None:
        readings = self._readings.read()
        if readings:
            self._watch.look(readings, self.state, self._group)

    def _save(self) -> None:
        """Save a checkpoint. Metrics are read first, so that a failed step is never saved."""
        self._read_figures()
        self._lap()
        self.state.position = self._setup.feed.position()
        self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        self._memory.look()
        self.state.peak_memory_bytes = self._memory.peak_bytes
        setup = self._setup
        started = time.perf_counter()
        self._checkpoints.save(
            setup.model, setup.optimizer, setup.step.precision, self.state, setup.plan
        )
        if self._logs is not None:
            self._logs.publish()
        self._saved = time.perf_counter()
        self._save_seconds = self._saved - started

    def _lap(self) -> None:
        """Adds the time since the last lap, and the waiting in it, to this epoch."""
        now, feed = time.perf_counter(), self._setup.feed
        self.state.epoch_seconds += now - self._since
        self.state.seconds += now - self._since
        self.state.epoch_wait_seconds += feed.wait_seconds
        self._since, feed.wait_seconds = now, 0.0

    def _end_epoch(self) -> None:
        self._lap()
        state, fabric = self.state, self._setup.fabric
        sums = EpochSums.total(gather(fabric, state.sums))
        metrics, threshold = self._validate(sums)
        if state.consider(metrics, threshold, self._setup.config.monitor):
            self._checkpoints.keep_best(self._setup.model)
        row = self._row(sums, metrics)
        state.history.append(row)
        state.seconds += time.perf_counter() - self._since
        self._since = time.perf_counter()
        state.begin_next_epoch()
        state.is_trained = self._is_over(metrics)
        if self._logs is not None:
            self._logs.add(row)
        self._reporter(EpochEnded(row=row))
        if state.is_trained or self._is_save_due():
            self._write_checkpoint()

    def _is_save_due(self) -> bool:
        """Whether to save a checkpoint now: even after every epoch if saving takes almost no time.
        The first process's clock decides for all."""
        due = self._setup.config.checkpoint_every_seconds
        due = min(due, _SAVE_TIMES_APART * self._save_seconds)
        return gather(self._setup.fabric, time.perf_counter() - self._saved >= due)[0]

    def _validate(self, sums: EpochSums) -> tuple[Metrics, float | None]:
        """Evaluate on the validation samples; without any, return the training loss."""
        setup = self._setup
        if self._validation is None:
            return {"loss": sums.means().get("loss")}, None
        result = score(setup.model, self._validation, setup.plan, setup.fabric)
        threshold = result.threshold()
        return result.metrics(threshold), threshold

    def _row(self, sums: EpochSums, metrics: Metrics) -> dict[str, Any]:
        state = self.state
        seconds = max(1e-9, state.epoch_seconds)
        validated = metrics if self._validation is not None else {}
        trained = {"loss": None} | sums.means()  # fp16 may have skipped every step
        return {
            "epoch": state.epoch + 1,
            "step": state.step,
            "lr": self._lr(state.step - 1),
            **{f"train_{name}": value for name, value in trained.items()},
            **{f"val_{name}": value for name, value in validated.items()},
            "samples_per_second": sums.samples / seconds,
            "data_wait_share": state.epoch_wait_seconds / seconds,
            "memory_bytes": self._memory.look(),
            "seconds": state.epoch_seconds,
        }

    def _is_over(self, metrics: Metrics) -> bool:
        state, config = self.state, self._setup.config
        name = monitored(metrics, config.monitor)
        if state.epoch == 1 and self._validation is not None and name != config.monitor:
            self._reporter(
                Note(
                    f"{config.monitor} is not defined on the validation samples (AUROC requires "
                    "both classes): the best epoch is selected by validation loss"
                )
            )
        if state.epoch >= config.epochs:
            return True
        patience = config.patience
        if patience is None or state.epochs_without_better < patience or state.best is None:
            return False
        self._reporter(
            Note(
                f"stopped early: {counted(patience, 'epoch')} without a better {name} than in "
                f"epoch {state.best.epoch + 1}"
            )
        )
        return True

    def _report(self) -> None:
        self._reported = now = time.perf_counter()
        state = self.state
        seconds = max(1e-9, state.epoch_seconds + now - self._since)
        waited = state.epoch_wait_seconds + self._setup.feed.wait_seconds
        self._reporter(
            TrainingProgress(
                epoch=state.epoch + 1,
                step=state.step,
                samples_per_second=state.sums.samples * self._setup.plan.processes / seconds,
                data_wait_share=waited / seconds,
                memory_bytes=self._memory.look(),
                loss=state.sums.means().get("loss"),
            )
        )


class Watch:
    """Checks the metrics of the steps. All processes see the same gradient norm, so they all reach
    the same decision."""

    def __init__(self, setup: Setup, reporter: Reporter) -> None:
        self._setup, self._reporter = setup, reporter
        self._skips = 0

    def look(self, readings: list[Figures], state: RunState, group: Group) -> None:
        """Adds the readings to the epoch's sums; `group` is that of the last of them.

        Raises TrainingError for non-finite values, unless fp16 is the cause; it is then switched
        off. Either way, the step was skipped on the device.
        """
        precision = self._setup.plan.precision
        for i, figures in enumerate(readings):
            begin = Position(epoch=state.epoch, samples=state.sums.samples)
            state.sums.add(figures)
            if figures.is_finite:
                self._skips = 0
            elif self._setup.plan.precision == precision:  # not switched off since these steps ran
                step = state.step - len(readings) + i
                self._examine(figures, step, begin, group if i == len(readings) - 1 else None)

    def _examine(self, figures: Figures, step: int, begin: Position, group: Group | None) -> None:
        setup, fabric = self._setup, self._setup.fabric
        is_fp16 = setup.plan.precision == "fp16"
        self._skips += 1
        if is_fp16 and self._skips < _MAX_SKIPS and all(gather(fabric, figures.has_finite_loss)):
            return
        batches = group.read if group is not None else setup.read_again(begin)
        where = f"in epoch {begin.epoch + 1}, step {step + 1}"
        if is_fp16:
            finite = is_finite_in_fp32(setup.model, setup.on_device(batches))
            if all(gather(fabric, finite)):
                self._skips = 0
                reason = f"fp16 produced non-finite values {where}, where fp32 does not"
                setup.leave_fp16(reason)
                self._reporter(Note(f"{reason}: continuing in {setup.plan.precision}"))
                return
        names = [name for batch in batches for name in sample_names(batch)]
        wrong = [sentence for batch in batches for sentence in find_wrong_inputs(batch)]
        parts = gather(fabric, (names, wrong))
        names = [name for part, _ in parts for name in part]
        raise self._explain(figures, where, names, [one for _, part in parts for one in part])

    def _explain(
        self, figures: Figures, where: str, names: list[str], wrong: list[str]
    ) -> TrainingError:
        """The error that ends a run: `names` of the step's samples, `wrong` parts of their data."""
        loss, norm = figures.means["loss"], figures.gradient_norm
        is_loss = not math.isfinite(loss)
        what = f"the loss is {loss:g}" if is_loss else f"the gradient's norm is {norm:g}"
        cause = (
            f"The data itself contains NaN or infinity: {list_some(wrong)}. Exclude these samples."
        )
        if not wrong:
            precision = self._setup.plan.precision
            mixed = precision in ("bf16", "fp16")
            amp = f", or `amp=False` (it ran in {precision})" if mixed else ""
            cause = f"The data is finite, so training diverged: try a lower `lr`{amp}."
        shown = list_some(names) or "the batch has no sample names"
        return TrainingError(
            f"{what} {where} (samples: {shown}). {cause} That step was not applied; the last "
            "checkpoint is from before it."
        )


def find_wrong_inputs(batch: Any) -> list[str]:
    """Which tensors contain NaN or infinity, and in which samples: `"sequence" of q17`."""
    names = sample_names(batch)
    found = []
    for tensor_name, tensor in named_tensors(batch):
        if not tensor.is_floating_point() or bool(tensor.isfinite().all()):
            continue
        wrong = tensor.isfinite().logical_not().reshape(len(tensor), -1).any(dim=1)
        whose = _samples_of(batch, tensor_name, wrong)
        shown = [names[i] if i < len(names) else f"sample {i}" for i in whose]
        found.append(f'"{tensor_name}" of {list_some(shown)}' if shown else f'"{tensor_name}"')
    return found


def _samples_of(batch: Any, name: str, wrong: Bool[Tensor, " rows"]) -> list[int]:
    """The samples that the non-finite rows belong to, if the batch identifies them."""
    samples = count_samples(batch)
    rows = wrong.nonzero()[:, 0]
    if len(wrong) == samples:
        return rows.tolist()
    graphs: Int64[Tensor, " nodes"] | None = getattr(batch, "batch", None)
    if graphs is None:
        return []
    if name.startswith("edge"):
        rows = batch["edge_index"][0, rows]
    graphs_a_sample = max(1, int(batch.num_graphs) // samples)
    return (graphs[rows] // graphs_a_sample).unique().tolist()


@torch.no_grad()
def is_finite_in_fp32(model: nn.Module, batches: Sequence[Any]) -> bool:
    """Whether the forward pass gives finite values without autocast, and all buffers are finite: a
    running mean that has become infinite stays infinite. Leaves the model unchanged."""
    device = next(model.parameters()).device
    before = [buffer.clone() for buffer in model.buffers()]
    with same_random_numbers(device), torch.autocast(device.type, enabled=False):
        losses = [model.training_step(batch).loss for batch in batches]  # type: ignore[operator]
    for buffer, value in zip(model.buffers(), before, strict=True):
        buffer.copy_(value)
    values = (*losses, *(buffer for buffer in before if buffer.is_floating_point()))
    return all(bool(value.isfinite().all()) for value in values)
