"""The in-run audit as a Lightning callback: works on any LightningModule, changes nothing unless a censor is given."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from gradient_disclosure.callbacks.across_ranks import (
    ACROSS_RANKS,
    AcrossRanks,
    OneProcess,
    Scored,
    across_ranks_of,
)
from gradient_disclosure.callbacks.audit_extent import AuditExtent
from gradient_disclosure.callbacks.audit_options import (
    keep_exposure,
    keep_ranks,
    refuse_across_ranks,
    refuse_contradictions,
    refuse_other_parameters,
    refuse_other_units,
)
from gradient_disclosure.callbacks.audit_schedule import AuditSchedule, StepCounter
from gradient_disclosure.callbacks.audited_layers import checked_layers, patterns_outside
from gradient_disclosure.callbacks.censored_gradient import keep_only
from gradient_disclosure.callbacks.observed_step import ExampleIds, ObservedStep, more_to_come
from gradient_disclosure.callbacks.product_precision import ProductPrecision
from gradient_disclosure.callbacks.released_scores import Mechanism, released_scores
from gradient_disclosure.callbacks.step_log import StepLog
from gradient_disclosure.callbacks.step_statistics import StepStatistics
from gradient_disclosure.callbacks.training_facts import (
    exposure_of,
    has_scaler,
    is_plainly_a_sum,
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
from gradient_disclosure.gram.engine import GradientGram
from gradient_disclosure.gram.options import LossReduction, Mode, Products
from gradient_disclosure.ledger import DisclosureLedger
from gradient_disclosure.scores.copies import joined_copies
from gradient_disclosure.scores.gnq import Damping, GnqResult
from gradient_disclosure.scores.scoring import Scoring

logger = logging.getLogger(__name__)

WITHOUT_IDS = (
    "GradientUniqueness has no example_ids: statistics of each batch are logged, but no ledger per example is kept. "
    "Pass example_ids=lambda batch: ... to get one."
)

VERIFY_EVERY = 100
"""Steps between two checks that the per-example gradients add up to autograd's. Until one has seen gradients that are
not zero, every step is checked."""


class GradientUniqueness(Callback):
    """Audits training steps, by default every one: how far each example's gradient stands out from its batch's others.

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
        every_n_steps: audit one random step of each n, at no cost at the others (an :class:`AuditSchedule` for another
            seed). An audited step then stands for n: totals and bits are estimates, see :class:`DisclosureLedger`.
        layers: patterns of the parameter names to audit, in place of ``exclude``; None for all. Scores are then lower
            than those of all parameters, and attackers' ceilings are withheld.
        across_ranks: what the examples of a step are scored among where several processes train together (DDP, or
            ``fully_shard``). "global": all of the step's, of all processes, as one process would. "per_rank": those of
            their own process, which is cheaper and another score; the ledger says so. Either way every process has the
            ledger of all examples at every step.
        mode: "untouched", or "reuse": the weight gradients of known layers are the sums of the per-example ones, equal
            but for rounding, and most of the audit's time is saved where layers see sequences or images. See
            :class:`GradientGram`; layers that Opacus hooks are left untouched.
        memory_budget_mb: about what the audit may hold at a time beside what training does.
        products: precision of the inner products, see :class:`GradientGram`. None: "float64", and "mixed" where λ is
            so large beside the gradients that it makes no difference (:class:`ProductPrecision`).

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
        mechanism: Mechanism | None = None,
        scope: str = "batch",
        inverse: str = "damped",
        every_n_steps: int | AuditSchedule = 1,
        layers: Sequence[str] | None = None,
        across_ranks: str = "global",
        mode: Mode = "untouched",
        memory_budget_mb: float = 64.0,
        products: Products | None = None,
    ) -> None:
        if across_ranks not in ACROSS_RANKS:
            raise ValueError(f"unknown across_ranks {across_ranks!r}; known: {', '.join(ACROSS_RANKS)}")
        schedule = every_n_steps if isinstance(every_n_steps, AuditSchedule) else AuditSchedule(every_n_steps)
        self.scoring = Scoring(damping if isinstance(damping, Damping) else Damping(damping), scope, inverse)
        refuse_contradictions(
            self.scoring,
            censor,
            has_ids=example_ids is not None,
            excludes=bool(exclude) or layers is not None,
            has_mechanism=mechanism is not None,
            every_n_steps=schedule.every_n_steps,
        )
        self.example_ids = example_ids
        self.loss_reduction = loss_reduction
        self.membership_prior = membership_prior
        self.layers = checked_layers(layers, exclude)
        self.exclude = tuple(exclude)
        self.censor = censor
        self.mechanism = mechanism
        n = schedule.every_n_steps
        self.ledger = DisclosureLedger(known_ids=known_ids, scope=scope, inverse=inverse, every_n_steps=n)
        self._steps = StepCounter(schedule)
        self.statistics = StepStatistics()
        self.coverage: float | None = None
        self.extent: AuditExtent | None = None
        self.across_ranks = across_ranks
        self.mode = mode
        self.memory_budget_mb = memory_budget_mb
        self._precision = ProductPrecision(products, self.scoring)
        self._across: AcrossRanks = OneProcess()
        self._log = StepLog(censors=censor is not None)
        self._open: ObservedStep | None = None
        self._waits = False
        self.skipped_steps = 0
        self._members: int | None = None
        self._verified = False
        self._audited_steps = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse what would make the audit wrong; find out how often an example is drawn."""
        refuse_unsupported_training(trainer, pl_module)
        if trainer.accumulate_grad_batches != 1 and (self.censor is not None or self.mechanism is not None):
            raise UnsupportedTrainingError(
                f"accumulate_grad_batches is {trainer.accumulate_grad_batches}: accumulated steps are audited, but a "
                "censor or DP-SGD needs the whole batch of a step at once. Set accumulate_grad_batches=1."
            )
        self._across = across_ranks_of(trainer, self.across_ranks)
        n_ranks = self._across.n_ranks
        refuse_across_ranks(self.censor, has_mechanism=self.mechanism is not None, n_ranks=n_ranks)
        if self.layers is not None:
            self.exclude = patterns_outside(pl_module, self.layers)
        self._members = number_of_examples(trainer.train_dataloader)
        if self.censor is not None and self._members is None:
            raise UnsupportedTrainingError(
                "a censor must know how many members there are: train from a loader whose data set has a length"
            )
        exposure = exposure_of(trainer, self.membership_prior, n_ranks)
        keep_ranks(self.ledger, self._across.ranks_apart)
        keep_exposure(self.ledger, exposure, self.scoring, has_ids=self.example_ids is not None)
        if self.example_ids is None:
            logger.warning(WITHOUT_IDS)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin to observe the step, if it is audited."""
        if self._waits:
            if self._open is not None:
                self._open.add(batch)
            return
        self._close()
        if not self._steps.begin():
            return
        gram = GradientGram(
            pl_module,
            self.loss_reduction,
            exclude=self.exclude,
            keep_terms=self.censor is not None,
            verify=self._audited_steps % VERIFY_EVERY == 0
            or (not self._verified and self._audited_steps < VERIFY_EVERY),
            micro_batches=trainer.accumulate_grad_batches,
            ranks=self._across.gram_ranks,
            mode=self.mode,
            memory_budget_mb=self.memory_budget_mb,
            products=self._precision.products,
        )
        self._open = ObservedStep(gram.__enter__(), batch)
        self._note_extent(gram, pl_module)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Refuse a loss that is plainly a sum where a mean was announced: every score would be wrong by B²."""
        if self._open is not None and self.loss_reduction == "mean" and is_plainly_a_sum(loss):
            raise UnsupportedTrainingError(
                "the training loss is a sum over the batch: use GradientUniqueness(..., loss_reduction='sum')"
            )

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score the step, write the ledger, let the censor drop."""
        rests = self._steps.rests
        if self._open is None and not rests:
            raise DisclosureError("GradientUniqueness saw a second backward pass in one step; it audits one a step")
        self._waits = more_to_come(trainer)
        if self._waits:
            return
        self._steps.end()
        step = trainer.global_step
        if self._open is None:
            self.ledger.begin_step()
            self._log.write(trainer, pl_module, self.ledger)
            return
        if has_scaler(trainer) and self._across.any(scaler_will_skip(trainer, pl_module)):
            self.skipped_steps += 1
            logger.info("step %d: the gradient scaler skips it (overflow); nothing is disclosed, nothing scored", step)
            self._close()
            return
        try:
            self._audit(self._open, trainer, step)
            self._log.write(trainer, pl_module, self.ledger)
        except (NonFiniteGradientError, IllConditionedGramError) as error:
            raise type(error)(f"step {step}: {error}{self._open.named()}") from None
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
            "extent": None if self.extent is None else asdict(self.extent),
            "audited_steps": self._audited_steps,
            "skipped_steps": self.skipped_steps,
            "schedule": self._steps.state_dict(),
            "parameters": {"layers": self.layers and list(self.layers), "exclude": list(self.exclude)},
            "censor": None if self.censor is None else self.censor.state_dict(),
            "smallest_relative_damping": self._precision.smallest_relative_damping,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        refuse_other_units(self.scoring, state_dict["ledger"])
        refuse_other_parameters(self.layers, self.exclude, state_dict["parameters"])
        self._steps.load_state_dict(state_dict["schedule"])
        self.ledger.load_state_dict(state_dict["ledger"])
        self.statistics = StepStatistics(**state_dict["statistics"])
        self.coverage, extent = state_dict["coverage"], state_dict["extent"]
        self.extent = None if extent is None else AuditExtent(**extent)
        self._audited_steps = state_dict["audited_steps"]
        self.skipped_steps = state_dict["skipped_steps"]
        self._precision.smallest_relative_damping = state_dict["smallest_relative_damping"]
        if self.censor is not None and state_dict["censor"] is not None:
            self.censor.load_state_dict(state_dict["censor"])

    def _audit(self, step_seen: ObservedStep, trainer: Trainer, step: int) -> None:
        self._log.last = None
        self.ledger.begin_step()
        scored = self._across.scored(lambda: self._scored(step_seen, trainer, step))
        self._audited_steps += bool(scored)
        for one in scored:
            result = one.result
            self.statistics.add(result)
            self._precision.note(result)
            if one.ids is not None:
                self.ledger.record(
                    one.ids,
                    gnq=result.scores,
                    squared_norms=result.squared_norms,
                    step=step,
                    inside_span=result.inside_span,
                )
        if scored:
            self._log.last = [one.result for one in scored], sum(len(one.result.scores) for one in scored)

    def _scored(self, step_seen: ObservedStep, trainer: Trainer, step: int) -> Scored | None:
        """Score the examples of the Gram; None if there are none, or the censor drops all."""
        observed, example_ids = step_seen.gram, self.example_ids
        if self._across.gram_ranks is None and observed.batch_size == 0:
            return None
        if example_ids is not None:
            step_seen.found_ids = self._across.ids(lambda: step_seen.ids(example_ids))
        gram = observed.gram(loss_scale=loss_scale(trainer)).cpu()
        self._verified = self._verified or observed.verified
        if len(gram) == 0:
            return None
        if step_seen.found_ids is None:
            return Scored(self._score(gram), None)
        if self._across.n_ranks > 1:
            gram, step_seen.found_ids = joined_copies(gram, step_seen.found_ids)
        decision = self._decide(gram, step_seen.found_ids, step)
        if decision.kept.numel() < len(gram):
            keep_only(observed, decision.kept, self.loss_reduction)
        if decision.kept.numel() == 0:
            self._audited_steps += 1
            return None
        return Scored(decision.result, step_seen.found_ids[decision.kept])

    def _score(self, gram: Tensor) -> GnqResult:
        return released_scores(gram, self.scoring, self.mechanism, self.ledger.batch_exposure)

    def _decide(self, gram: Tensor, ids: Tensor, step: int) -> Decision:
        def score(positions: Tensor) -> GnqResult:
            return self._score(gram[positions][:, positions])

        everyone = torch.arange(len(gram))
        if self.censor is None:
            return Decision(everyone, everyone[:0], self._score(gram))
        active = everyone[~self.ledger.is_censored(ids)]
        decision = self.censor.decide(self.ledger, ids, active, score)
        self.ledger.censor(ids[decision.dropped], step)
        assert self._members is not None
        refuse_beyond_limit(self.ledger.n_censored, self._members, self.censor.rule)
        return decision

    def _note_extent(self, gram: GradientGram, pl_module: LightningModule) -> None:
        """Keep what the labels of the scores say; a parameter that is set free later can lower the coverage."""
        extent = AuditExtent.of(self._steps.schedule.every_n_steps, gram, pl_module)
        if extent != self.extent and (labels := extent.in_words()):
            logger.info("GradientUniqueness: %s", "; ".join(labels))
        self.coverage, self.extent = gram.coverage, extent
        self.ledger.cover(gram.coverage)

    def _close(self) -> None:
        if self._open is not None:
            self._open.gram.abandon()
            self._open = None
        self._waits = False
