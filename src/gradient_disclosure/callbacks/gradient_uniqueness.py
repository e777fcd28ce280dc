"""The in-run audit as a Lightning callback: works on any LightningModule, changes nothing unless a censor is given."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from gradient_disclosure.callbacks.audit_options import refuse_contradictions, refuse_other_units, why_no_bits
from gradient_disclosure.callbacks.observed_step import ExampleIds, ObservedStep, more_to_come
from gradient_disclosure.callbacks.step_statistics import StepStatistics, logged_values
from gradient_disclosure.callbacks.training_facts import (
    exposure_of,
    is_plainly_a_sum,
    log_interval,
    loss_scale,
    number_of_examples,
    refuse_unsupported_training,
    scaler_will_skip,
)
from gradient_disclosure.defenses.gnq_censor import Censor, Decision, refuse_beyond_limit
from gradient_disclosure.errors import (
    DisclosureError,
    IllConditionedGramError,
    NonFiniteGradientError,
    UnsupportedTrainingError,
)
from gradient_disclosure.gram.engine import GradientGram, LossReduction
from gradient_disclosure.ledger import DisclosureLedger, Exposure
from gradient_disclosure.scores.clipping import GaussianMechanism
from gradient_disclosure.scores.gnq import Damping, GnqResult, gradient_uniqueness
from gradient_disclosure.scores.scoring import Scoring

logger = logging.getLogger(__name__)

VERIFY_EVERY = 100
"""Steps between two checks that the per-example gradients add up to autograd's. Until one has seen gradients that are
not zero, every step is checked."""


class GradientUniqueness(Callback):
    """Audits every training step: how far each example's gradient stands out from the others in its batch.

    Without a censor, training is bitwise the same as without the callback.

    Args:
        damping: λ of the definition in units of the scope (the batch Gram), or a :class:`Damping` for a relative one. λ
            is the variance the attacker is assumed to face in each coordinate of the SUM of the batch's gradients, up
            to a factor 1/(1 − p); DP-SGD's real noise takes its place when ``mechanism`` is given.
        example_ids: batch → (B,) integer data set indices, on any device, e.g. ``lambda batch: batch[2]``. Without it
            batch statistics are logged and no ledger is kept.
        loss_reduction: how the training loss reduces over the batch. A sum taken for a mean makes every score wrong;
            torch's own losses are recognized, a sum written by hand is not.
        membership_prior: q, probability that an example of the pool is a member.
        known_ids: size N of the pool if ids are 0 … N − 1; unknown ids are then errors.
        exclude: patterns of parameter names left out of the Gram on purpose (coverage falls below 1).
        censor: drop examples that would pass their budget, exactly, at the step at which they would.
        mechanism: clipping and noise of DP-SGD; a callable is asked at the first step. Scores are then those of what
            is released.
        scope: "batch", or "universe_proxy": an estimate of the scores among all examples of the pool, with λ in its
            units, 1/p times those of the batch. See :class:`Scoring`.
        inverse: "damped", or "pinv": no λ, no bits, and blind to what lies outside the span of the other gradients.

    Example:
        >>> audit = GradientUniqueness(damping=1e-2, example_ids=lambda batch: batch[2])
        >>> len(audit.ledger)
        0
    """

    def __init__(
        self,
        damping: float | Damping = 1e-2,
        example_ids: ExampleIds | None = None,
        *,
        loss_reduction: LossReduction = "mean",
        membership_prior: float = 0.5,
        known_ids: int | None = None,
        exclude: Sequence[str] = (),
        censor: Censor | None = None,
        mechanism: GaussianMechanism | Callable[[], GaussianMechanism] | None = None,
        scope: str = "batch",
        inverse: str = "damped",
    ) -> None:
        self.scoring = Scoring(damping if isinstance(damping, Damping) else Damping(damping), scope, inverse)
        refuse_contradictions(
            self.scoring,
            censor,
            has_ids=example_ids is not None,
            excludes=bool(exclude),
            has_mechanism=mechanism is not None,
        )
        self.example_ids = example_ids
        self.loss_reduction = loss_reduction
        self.membership_prior = membership_prior
        self.exclude = tuple(exclude)
        self.censor = censor
        self.mechanism = mechanism
        self.ledger = DisclosureLedger(known_ids=known_ids, scope=scope, inverse=inverse)
        self.statistics = StepStatistics()
        self.coverage: float | None = None
        self._open: ObservedStep | None = None
        self._waits = False
        self.skipped_steps = 0
        self._members: int | None = None
        self._verified = False
        self._audited_steps = 0

    # ---------------------------------------------------------------- Lightning hooks

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse what would make the audit wrong; find out how often an example is drawn."""
        refuse_unsupported_training(trainer, pl_module)
        if trainer.accumulate_grad_batches != 1 and (self.censor is not None or self.mechanism is not None):
            raise UnsupportedTrainingError(
                f"accumulate_grad_batches is {trainer.accumulate_grad_batches}: accumulated steps are audited, but a "
                "censor or DP-SGD needs the whole batch of a step at once. Set accumulate_grad_batches=1."
            )
        self._members = number_of_examples(trainer.train_dataloader)
        if self.censor is not None and self._members is None:
            raise UnsupportedTrainingError(
                "a censor must know how many members there are: train from a loader whose data set has a length"
            )
        self._set_exposure(exposure_of(trainer, self.membership_prior))
        if self.example_ids is None:
            logger.warning(
                "GradientUniqueness has no example_ids: statistics of each batch are logged, but no ledger per "
                "example is kept. Pass example_ids=lambda batch: ... to get one."
            )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin to observe the step."""
        if self._open is not None and self._waits:
            self._open.add(batch)
            return
        self._close()
        gram = GradientGram(
            pl_module,
            self.loss_reduction,
            exclude=self.exclude,
            keep_terms=self.censor is not None,
            verify=self._audited_steps % VERIFY_EVERY == 0
            or (not self._verified and self._audited_steps < VERIFY_EVERY),
            micro_batches=trainer.accumulate_grad_batches,
        )
        self._open = ObservedStep(gram.__enter__(), batch)
        self.coverage = gram.coverage

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Refuse a loss that is plainly a sum where a mean was announced: every score would be wrong by B²."""
        if self.loss_reduction == "mean" and is_plainly_a_sum(loss):
            raise UnsupportedTrainingError(
                "the training loss is a sum over the batch: use GradientUniqueness(..., loss_reduction='sum')"
            )

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score the step, write the ledger, let the censor drop."""
        if self._open is None:
            raise DisclosureError("GradientUniqueness saw a second backward pass in one step; it audits one a step")
        self._waits = more_to_come(trainer)
        if self._waits:
            return
        step = trainer.global_step
        if scaler_will_skip(trainer, pl_module):
            self.skipped_steps += 1
            logger.info("step %d: the gradient scaler skips it (overflow); nothing is disclosed, nothing scored", step)
            self._close()
            return
        try:
            self._audit(self._open, trainer, pl_module, step)
        except (NonFiniteGradientError, IllConditionedGramError) as error:
            raise type(error)(f"step {step}: {error}{self._open.named(self.example_ids)}") from None
        finally:
            self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave nothing on the module."""
        self._close()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave nothing on the module."""
        self._close()

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers and plain containers only."""
        return {
            "ledger": self.ledger.state_dict(),
            "statistics": dict(vars(self.statistics)),
            "coverage": self.coverage,
            "audited_steps": self._audited_steps,
            "skipped_steps": self.skipped_steps,
            "censor": None if self.censor is None else self.censor.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        refuse_other_units(self.scoring, state_dict["ledger"])
        self.ledger.load_state_dict(state_dict["ledger"])
        self.statistics = StepStatistics(**state_dict["statistics"])
        self.coverage = state_dict["coverage"]
        self._audited_steps = state_dict["audited_steps"]
        self.skipped_steps = state_dict["skipped_steps"]
        if self.censor is not None and state_dict["censor"] is not None:
            self.censor.load_state_dict(state_dict["censor"])

    # ---------------------------------------------------------------- one step

    def _audit(self, step_seen: ObservedStep, trainer: Trainer, pl_module: LightningModule, step: int) -> None:
        observed = step_seen.gram
        self.ledger.begin_step()
        if observed.batch_size == 0:
            return
        gram = observed.gram(loss_scale=loss_scale(trainer)).cpu()
        self._verified = self._verified or observed.verified
        self._audited_steps += 1
        decision = self._decide(gram, step_seen, step)
        if decision.kept.numel() < observed.batch_size:
            self._drop(observed, decision, step)
        if decision.kept.numel() == 0:
            return
        result = decision.result
        self.statistics.add(result)
        if self.example_ids is not None:
            kept_ids = step_seen.ids(self.example_ids)[decision.kept]
            self.ledger.record(
                kept_ids,
                gnq=result.scores,
                squared_norms=result.squared_norms,
                step=step,
                inside_span=result.inside_span,
            )
        if trainer.loggers and (step + 1) % log_interval(trainer) == 0:
            self._log(pl_module, result, decision.kept.numel())

    def _decide(self, gram: Tensor, step_seen: ObservedStep, step: int) -> Decision:
        def score(positions: Tensor) -> GnqResult:
            return self._score(gram[positions][:, positions])

        everyone = torch.arange(len(gram))
        if self.censor is None:
            return Decision(everyone, everyone[:0], self._score(gram))
        assert self.example_ids is not None
        ids = step_seen.ids(self.example_ids)
        active = everyone[~self.ledger.is_censored(ids)]
        decision = self.censor.decide(self.ledger, ids, active, score)
        self.ledger.censor(ids[decision.dropped], step)
        assert self._members is not None
        refuse_beyond_limit(self.ledger.n_censored, self._members, self.censor.rule)
        return decision

    def _score(self, gram: Tensor) -> GnqResult:
        mechanism = self.mechanism() if callable(self.mechanism) else self.mechanism
        sampling = None if self.ledger.exposure is None else self.ledger.exposure.sampling
        if mechanism is None:
            return self.scoring.score(gram, sampling)
        assert sampling is not None
        return gradient_uniqueness(mechanism.clipped(gram), mechanism.damping(sampling))

    def _drop(self, observed: GradientGram, decision: Decision, step: int) -> None:
        """Make the gradient that of the batch without the examples not kept: the mean (or sum) over those kept.

        With nobody left every gradient is None, which every torch optimizer takes as "no step": moments and weight
        decay rest.
        """
        kept = decision.kept.numel()
        if kept == 0:
            for parameter in observed.parameters:
                parameter.grad = None
            return
        weights = torch.zeros(observed.batch_size, dtype=torch.float64)
        weights[decision.kept] = 1.0 / kept if self.loss_reduction == "mean" else 1.0
        for parameter, gradient in observed.weighted_gradient(weights):
            parameter.grad = gradient

    def _log(self, pl_module: LightningModule, result: GnqResult, size: int) -> None:
        values = logged_values(result)
        if self.censor is not None:
            values["disclosure/censored"] = float(self.ledger.n_censored)
        pl_module.log_dict(values, on_step=True, on_epoch=False, batch_size=size)

    def _set_exposure(self, exposure: Exposure | None) -> None:
        known = self.ledger.exposure
        if known is not None and exposure != known and len(self.ledger):
            raise UnsupportedTrainingError(
                f"this audit's ledger was kept at {known}, but this training draws at {exposure}: their bits do not "
                "add up. Use a fresh GradientUniqueness."
            )
        self.ledger.exposure = exposure
        reason = why_no_bits(self.scoring, knows_draws=exposure is not None)
        if reason is not None and self.example_ids is not None:
            logger.warning("GradientUniqueness %s: the ledger holds GNQ and norms, but no bits.", reason)

    def _close(self) -> None:
        if self._open is not None:
            self._open.gram.abandon()
            self._open = None
        self._waits = False
