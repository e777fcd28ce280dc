"""What the loggers are told of the audited steps."""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch import LightningModule, Trainer

from gradient_disclosure.callbacks.step_statistics import logged_together
from gradient_disclosure.callbacks.training_facts import log_interval
from gradient_disclosure.ledger import DisclosureLedger
from gradient_disclosure.scores.gnq import GnqResult


class StepLog:
    """Holds the last audited step until Lightning writes, which may be at a step that is not audited.

    Args:
        censors: whether to log how many examples were censored.

    Example:
        >>> StepLog(censors=False).last is None
        True
    """

    def __init__(self, *, censors: bool) -> None:
        self._censors = censors
        self.last: tuple[Sequence[GnqResult], int] | None = None

    def write(self, trainer: Trainer, pl_module: LightningModule, ledger: DisclosureLedger) -> None:
        """Log the last audited step if one is waiting and Lightning writes at the present step.

        Args:
            trainer: knows the step and how often it logs.
            pl_module: through which callbacks log.
            ledger: says how much of the training is audited.
        """
        if self.last is None or not trainer.loggers or (trainer.global_step + 1) % log_interval(trainer) != 0:
            return
        (results, size), self.last = self.last, None
        values = logged_together(results)
        values["disclosure/coverage"] = ledger.coverage
        values["disclosure/every_n_steps"] = float(ledger.every_n_steps)
        if self._censors:
            values["disclosure/censored"] = float(ledger.n_censored)
        pl_module.log_dict(values, on_step=True, on_epoch=False, batch_size=size)
