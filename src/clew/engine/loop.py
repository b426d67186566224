"""The one loop: steps, epochs, validation, checkpoints, early stopping."""

import time
from collections.abc import Callable
from typing import Any

from clew.base.errors import TrainingStoppedError
from clew.base.memory import is_out_of_memory
from clew.base.progress import Note, Reporter
from clew.base.texts import counted
from clew.engine.checkpoint import Checkpoints, Parts
from clew.engine.evaluate import Metrics, score
from clew.engine.events import EpochEnded, TrainingProgress
from clew.engine.feed import Group
from clew.engine.logs import Logs
from clew.engine.memory import MemoryUse
from clew.engine.optimizer import OneCycle
from clew.engine.processes import gather
from clew.engine.protocols import Batches
from clew.engine.setup import Setup
from clew.engine.state import EpochSums, Readings, RunState, monitored
from clew.engine.step import StepResult
from clew.engine.watch import Watch

_REPORT_EVERY_SECONDS = 0.2
_SAVE_TIMES_APART = 50


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
        self._schedule = OneCycle(
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
        while not self.state.is_trained:
            self._setup.feed.open(self.state.position)
            # An epoch that starts from the beginning sets its own seed.
            if resumed and self.state.position.samples:
                self._checkpoints.restore_random()
            resumed = False
            self._train_epoch()
            self._end_epoch()
            self._stop_between_epochs()

    def _train_epoch(self) -> None:
        self._setup.model.train()
        while (group := self._setup.feed.next_group()) is not None:
            self._wish()
            if self._take_step(group):
                self._after_step()
        self._read_figures()

    def _take_step(self, group: Group) -> bool:
        """Take one step. Returns False if it did not fit in memory: its samples are then read
        again, in smaller batches."""
        result = self._try_step(group)
        if result is None:
            self._setup.shrink(group, self.state.step)
            self._reporter(Note(self._setup.plan.reasons["batch_size"]))
            return False
        self._setup.feed.step_launched(group)
        self._group = group
        self._readings.add(result)
        self.state.step += 1
        return True

    def _try_step(self, group: Group) -> StepResult | None:
        try:
            return self._setup.step.run(group.batches, self._schedule.lr(self.state.step))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        return None

    def _wish(self) -> None:
        due = self._setup.config.checkpoint_every_seconds
        self._setup.wishes.save = time.perf_counter() - self._saved >= due
        self._setup.wishes.stop = self._should_stop()

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
        parts = Parts(model=setup.model, optimizer=setup.optimizer, precision=setup.step.precision)
        started = time.perf_counter()
        self._checkpoints.save(parts, self.state, setup.plan)
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
        self._tell(row)
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
            "lr": self._schedule.lr(state.step - 1),
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

    def _tell(self, row: dict[str, Any]) -> None:
        if self._logs is not None:
            self._logs.add(row)
        self._reporter(EpochEnded(row=row))

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
