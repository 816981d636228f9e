"""The one training loop: every step hands it a `Step`, it does the rest.

Optimiser, schedule, clipping, a guard against NaN, validation, checkpoints and metrics. All chance
is a function of (seed, update), so a run that was killed goes on as if nothing had happened: on a
CPU to the same bits. On a GPU nothing is read back but every `LOOK_EVERY` updates.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from polyshot.errors import PolyshotError
from polyshot.training import parallel
from polyshot.training.step import Best, Group, Record, Schedule, Step
from polyshot.util.device import fast, in_one_piece, seed
from polyshot.util.tensors import read_checkpoint, write_checkpoint

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What is obeyed between updates, never inside one."""
LOOK_EVERY = 50
"""Updates between two lines of metrics; a GPU is asked for results no more often."""
MOST_SKIPPED = 20
"""Updates in a row without a finite loss and gradient after which a training is given up."""


def learn(step: Step, schedule: Schedule, record: Record, seed: int) -> Best:
    """Train until the schedule's end, from the checkpoint if there is one.

    Afterwards the module holds the best state by validation, frozen and in evaluation mode; the
    step is closed in any case. Ctrl-C and SIGTERM leave a checkpoint.
    """
    device = next(step.module.parameters()).device
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices), fast(device), signals_postponed() as asked:
            return _Loop(step, schedule, record, seed, device).run(asked)
    except torch.OutOfMemoryError:
        option, value = step.memory
        raise PolyshotError(
            f"The GPU's memory is full in the step '{step.name}': try {option}={max(1, value // 2)}"
            " in a new run."
        ) from None
    finally:
        step.close()


class _Loop:
    def __init__(
        self, step: Step, schedule: Schedule, record: Record, seed: int, device: torch.device
    ):
        self.step, self.schedule, self.seed, self.device = step, schedule, seed, device
        self.checkpoint, self.metrics, self.report = (
            record.checkpoint,
            record.metrics,
            record.report,
        )
        self.writes = parallel.rank() == 0
        self.together = step.shared and parallel.world_size() > 1
        groups = [group for group in step.groups() if group.parameters]
        self.parameters = [parameter for group in groups for parameter in group.parameters]
        self.optimiser = _optimiser(groups, schedule)
        self.statistics = in_one_piece(step.module)
        self.number, self.skipped = 0, 0
        self.best: dict[str, Any] | None = None
        self.row = torch.zeros((), device=device)
        """Updates skipped in a row, until now."""
        self.longest = torch.zeros_like(self.row)
        """Longest such row since the last look."""
        self._new_tally()
        if self.checkpoint.exists():
            self._load()
        if self.writes:
            self.metrics.forget(step.name, self.number)
        step.ready()

    def run(self, asked: Callable[[], int]) -> Best:
        total, images = self.schedule.steps, self.step.images
        if self.best is None and (total == 0 or (self.schedule.from_start and not self.number)):
            value, better = self._validate()
            if total and self.writes:
                self.metrics.forget(self.step.name, -1)
                self.metrics.write(self.step.name, 0, validation=value, best=better)
        while self.number < total:
            stop = self._update(asked)
            self.number += 1
            due = self.number == total or self.number % max(1, self.schedule.validate_every) == 0
            if due or stop or self.number % LOOK_EVERY == 0:
                self._look(due)
            if due or stop:
                self._save()
            if stop:
                obey(asked() or stop)
            if self.report and self.writes:
                try:
                    self.report(self.step.name, self.number * images, total * images)
                except KeyboardInterrupt:
                    if self.number > self.since:
                        self._look(False)
                    self._save()
                    raise
        if not self.together and asked():  # it came during the last validation; all is saved
            obey(asked())
        return self._finish()

    def _update(self, asked: Callable[[], int]) -> int:
        """Make one update, unless its loss or gradient is not finite; returns a signal to obey."""
        self.optimiser.zero_grad(set_to_none=True)
        before = self.statistics.clone()
        seed("update", self.seed, self.step.name, self.number)
        loss = self.step.loss(self.number)
        loss.backward()  # type: ignore[no-untyped-call]
        value = loss.detach().float()
        news = torch.stack([value, value.new_full((), asked())])
        if self.together:
            parallel.average(news)
        norm = torch.nn.utils.get_total_norm(self._gradients())
        fine = norm.isfinite() & news[0].isfinite()
        # Fused optimisers divide by `grad_scale` and do nothing at all where `found_inf` is 1, on
        # the device itself: clipping and the guard cost no pass and no waiting. Both are float32
        # by contract, whatever the weights are.
        clip = self.schedule.clip
        scale = (norm / clip).clamp(min=1) if clip else torch.ones_like(norm)
        scale = scale.to(torch.float32)
        self.optimiser.grad_scale = scale  # type: ignore[attr-defined]
        self.optimiser.found_inf = (~fine).to(torch.float32)  # type: ignore[attr-defined]
        for group in self.optimiser.param_groups:
            group["lr"] = group["pace"] * self.schedule.rate(self.number)
        self.optimiser.step()
        torch.where(fine, self.statistics, before, out=self.statistics)  # it saw the NaN too
        self._count(news[0], fine)
        if not self.together:
            return asked()
        # All processes must stop after the same update. Asking costs a GPU a wait, so seldom.
        at_look = self.device.type == "cpu" or (self.number + 1) % LOOK_EVERY == 0
        return math.ceil(float(news[1])) if at_look else 0

    def _gradients(self) -> list[Tensor]:
        """Collect the gradients, laid out in memory as their parameters."""
        # Strides may differ where a size is 1, as in 1x1 kernels: fused optimisers mind.
        for parameter in self.parameters:
            gradient = parameter.grad
            if gradient is not None and gradient.stride() != parameter.stride():
                parameter.grad = gradient.as_strided(parameter.shape, parameter.stride())
        return [p.grad for p in self.parameters if p.grad is not None]

    def _count(self, loss: Tensor, fine: Tensor) -> None:
        self.loss_sum += loss.where(fine, 0.0)
        self.fine_count += fine
        self.row = (self.row + 1).where(~fine, 0)
        self.longest = torch.maximum(self.longest, self.row)
        if self.device.type == "cpu":
            self._give_up_if_hopeless()

    def _give_up_if_hopeless(self) -> None:
        if int(self.longest) >= MOST_SKIPPED:
            section, rate = self.step.section, self.schedule.learning_rate
            raise PolyshotError(
                f"The loss or its gradient was not a finite number in {MOST_SKIPPED} updates in a "
                f"row, before update {self.number + 1} of the step '{self.step.name}': try "
                f"{section}.learning_rate={rate / 4:g} in a new run."
            )

    def _look(self, validate: bool) -> None:
        """Read the tally, write a line of metrics, validate if that is due."""
        fine, looked = int(self.fine_count), self.number - self.since
        seconds = time.perf_counter() - self.clock  # the reading has waited for the device
        self._give_up_if_hopeless()
        self.skipped += looked - fine
        value, better = self._validate() if validate else (None, None)
        self.metrics.write(
            self.step.name,
            self.number,
            loss=float(self.loss_sum) / fine if fine else None,
            learning_rate=self.schedule.rate(self.number - 1),
            images_per_second=round(looked * self.step.images / seconds, 1),
            skipped=self.skipped or None,
            validation=value,
            best=better,
        )
        self._new_tally()

    def _new_tally(self) -> None:
        self.loss_sum, self.fine_count, self.longest = (
            torch.zeros((), device=self.device) for _ in range(3)
        )
        self.since, self.clock = self.number, time.perf_counter()

    def _validate(self) -> tuple[float | None, bool | None]:
        """Validate in the first process alone; its batch norm statistics are the ones kept."""
        if not self.writes:
            return None, None
        value = self.step.validate()
        better = self.best is None or value > self.best["value"]
        if better:
            weights = {name: t.clone() for name, t in self.step.module.state_dict().items()}
            self.best = {"value": value, "number": self.number, "weights": weights}
        return value, better

    def _save(self) -> None:
        if self.writes:
            state = {
                "number": self.number,
                "skipped": self.skipped,
                "row": float(self.row),
                "weights": self.step.module.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "best": self.best,
            }
            write_checkpoint(self.checkpoint, state)

    def _load(self) -> None:
        state = read_checkpoint(self.checkpoint, self.device)
        self.number, self.skipped, self.best = state["number"], state["skipped"], state["best"]
        self.step.module.load_state_dict(state["weights"])
        self.optimiser.load_state_dict(state["optimiser"])
        self._new_tally()
        self.row.fill_(state["row"])

    def _finish(self) -> Best:
        if self.best is not None:
            self.step.module.load_state_dict(self.best["weights"])
        if self.together:
            for tensor in self.step.module.state_dict().values():
                dist.broadcast(tensor, src=0)
        self.step.module.eval().requires_grad_(False)
        best = self.best or {"value": math.nan, "number": self.number}
        return Best(best["value"], best["number"], self.skipped)


def _optimiser(groups: list[Group], schedule: Schedule) -> torch.optim.Optimizer:
    described = [
        {"params": own, "weight_decay": schedule.weight_decay * decayed, "pace": pace}
        for own, decayed, pace in groups
    ]
    if schedule.optimiser == "adam":  # decoupled decay; without any it is plain Adam
        return torch.optim.AdamW(described, lr=schedule.learning_rate, fused=True)
    optimiser = torch.optim.SGD(
        described, lr=schedule.learning_rate, momentum=0.9, nesterov=True, fused=True
    )
    for own, _, _ in groups:
        for parameter in own:
            # The first update would leave its momentum unset, if it is one that is skipped.
            optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimiser


@contextmanager
def signals_postponed() -> Iterator[Callable[[], int]]:
    """Hold signals back; yields a function that returns the signal that came, or 0.

    A second signal acts at once, for those who cannot wait. Only the main thread can do this;
    elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    came = 0

    def note(number: int, _: FrameType | None) -> None:
        nonlocal came
        came = number
        restore()

    before = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in SIGNALS:
        signal.signal(number, note)
    try:
        yield lambda: came
    finally:
        restore()


def obey(number: int) -> None:
    """Do now what the signal asked for."""
    if number == signal.SIGTERM:
        raise SystemExit(128 + number)
    raise KeyboardInterrupt
