"""Which optimizer steps are audited, if not all are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradient_disclosure.errors import UnsupportedTrainingError
from gradient_disclosure.training.batches import derived_seed


@dataclass(frozen=True)
class AuditSchedule:
    """One step of every ``every_n_steps``, drawn at random: each step is audited with probability 1/n.

    A fixed stride would meet the same batches of every epoch again if stride and steps per epoch have a common factor,
    and would never audit the examples of the others. So the steps are cut into windows of n, and one step of each
    window is drawn. The choice is a pure function of (seed, n, window): it uses no random state, is the same after a
    resume and on every process, and is independent of data, weights and batches. So an audited step stands for n steps
    without bias, also in a last window that the training does not finish.

    Attributes:
        every_n_steps: n, length of a window; 1 audits every step.
        seed: of the choice.

    Example:
        >>> schedule = AuditSchedule(every_n_steps=4)
        >>> [sum(schedule.audits(step) for step in range(start, start + 4)) for start in (0, 4, 8)]
        [1, 1, 1]
        >>> all(AuditSchedule().audits(step) for step in range(10))
        True
    """

    every_n_steps: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.every_n_steps, bool) or not isinstance(self.every_n_steps, int) or self.every_n_steps < 1:
            raise ValueError(f"every_n_steps must be a whole number of steps, at least 1, got {self.every_n_steps!r}")

    def audits(self, step: int) -> bool:
        """Whether the step with this number, counted from 0, is audited."""
        window, position = divmod(step, self.every_n_steps)
        chosen = derived_seed("audited step", self.seed, self.every_n_steps, window) % self.every_n_steps
        return position == chosen


class StepCounter:
    """Where a training stands in its schedule; goes on over checkpoints and over a second ``fit``.

    Args:
        schedule: which steps are audited.

    Example:
        >>> counter = StepCounter(AuditSchedule())
        >>> counter.begin(), counter.rests
        (True, False)
    """

    def __init__(self, schedule: AuditSchedule) -> None:
        self.schedule = schedule
        self.done = 0
        self.rests = False

    def begin(self) -> bool:
        """Whether the step that begins is audited; ``rests`` says the opposite until it ends."""
        self.rests = not self.schedule.audits(self.done)
        return not self.rests

    def end(self) -> None:
        """The step is done."""
        self.done += 1
        self.rests = False

    def state_dict(self) -> dict[str, Any]:
        """Numbers only."""
        return {"every_n_steps": self.schedule.every_n_steps, "seed": self.schedule.seed, "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a checkpoint was.

        Raises:
            UnsupportedTrainingError: the checkpoint was audited by another schedule.
        """
        stored = AuditSchedule(state["every_n_steps"], state["seed"])
        if stored != self.schedule:
            raise UnsupportedTrainingError(
                f"the stored ledger was kept at {stored}, and this audit is set to {self.schedule}: their scores do "
                "not add up. Continue with the stored schedule, or start anew."
            )
        self.done, self.rests = state["done"], False
