"""How private a DP-SGD training is asked to be, and what that comes to for given members and steps."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from gradient_disclosure.defenses.dp_sgd_accounting import Accountant, default_delta, solve_noise_multiplier
from gradient_disclosure.errors import UnsupportedTrainingError


@dataclass(frozen=True)
class PrivacyTerms:
    """What one training is accounted with; a resumed one has to agree in all of it.

    Attributes:
        clip_norm: C, the largest norm of one example's gradient.
        noise_multiplier: σ; noise of standard deviation σC is added to the sum of clipped gradients.
        delta: δ.
        sampling_rate: probability that a member is in a batch.
        accountant: how ε is bounded.
        target_epsilon: the budget that σ was solved for; None if σ was given.
        planned_steps: the number of steps that σ was solved for; None if σ was given.
    """

    clip_norm: float
    noise_multiplier: float
    delta: float
    sampling_rate: float
    accountant: Accountant
    target_epsilon: float | None
    planned_steps: int | None

    def describe(self) -> str:
        """One line for the reader of a log.

        Example:
            >>> PrivacyTerms(1.0, 1.1, 1e-4, 0.1, "prv", None, None).describe()
            'DP-SGD: noise multiplier 1.1, clipping norm 1, sampling rate 0.1, delta 0.0001, accountant prv'
        """
        solved = (
            "" if self.target_epsilon is None else f" (epsilon {self.target_epsilon:g}, {self.planned_steps} steps)"
        )
        return (
            f"DP-SGD: noise multiplier {self.noise_multiplier:.5g}{solved}, clipping norm {self.clip_norm:g}, sampling "
            f"rate {self.sampling_rate:.4g}, delta {self.delta:.3g}, accountant {self.accountant}"
        )


@dataclass(frozen=True)
class PrivacySettings:
    """A clipping norm and either a noise multiplier or a privacy budget.

    Attributes:
        clip_norm: C, the largest norm of one example's gradient.
        noise_multiplier: σ; 0 clips without noise, and ε is infinite.
        target_epsilon: the budget of the whole training, from which σ is solved when the number of steps is known.
        delta: δ; None for 1 / (10 n) with n members.
        accountant: "prv" (tighter) or "rdp", see `privacy_spent`.

    Raises:
        UnsupportedTrainingError: a value is out of range, or not exactly one of σ and ε is given.

    Example:
        >>> PrivacySettings(clip_norm=1.0, noise_multiplier=1.1).terms(members=700, sampling_rate=0.1, steps=100).delta
        0.00014285714285714287
    """

    clip_norm: float
    noise_multiplier: float | None = None
    target_epsilon: float | None = None
    delta: float | None = None
    accountant: Accountant = "prv"

    def __post_init__(self) -> None:
        if not 0.0 < self.clip_norm < math.inf:
            raise UnsupportedTrainingError(f"clip_norm must be positive and finite, not {self.clip_norm}.")
        if (self.noise_multiplier is None) == (self.target_epsilon is None):
            raise UnsupportedTrainingError(
                "Give exactly one of noise_multiplier and target_epsilon; the other follows from it (now "
                f"noise_multiplier={self.noise_multiplier}, target_epsilon={self.target_epsilon})."
            )
        if self.noise_multiplier is not None and not 0.0 <= self.noise_multiplier < math.inf:
            raise UnsupportedTrainingError(f"noise_multiplier must be 0 or more, not {self.noise_multiplier}.")
        if self.target_epsilon is not None and not 0.0 < self.target_epsilon < math.inf:
            raise UnsupportedTrainingError(
                f"epsilon must be positive and finite, not {self.target_epsilon} (target_epsilon of DPSGD)."
            )
        if self.accountant not in ("prv", "rdp"):
            raise UnsupportedTrainingError(f"accountant must be 'prv' or 'rdp', not {self.accountant!r}.")

    def terms(
        self, *, members: int, sampling_rate: float, steps: int | None, saved: PrivacyTerms | None = None
    ) -> PrivacyTerms:
        """Fill in δ and σ.

        Args:
            members: n.
            sampling_rate: probability that a member is in a batch.
            steps: optimizer steps of the whole training, None if there is no limit.
            saved: the terms of the training that is resumed; they are returned if these settings still ask for them.

        Raises:
            UnsupportedTrainingError: δ is 1/n or more, a budget has no number of steps, or ``saved`` differs.
        """
        delta = self.delta if self.delta is not None else default_delta(members)
        if not 0.0 < delta < 1.0 / members:
            raise UnsupportedTrainingError(
                f"delta must lie between 0 and 1/n = {1 / members:.3g} for n = {members} members, not {delta}: at 1/n "
                "a mechanism may publish a member in full. Leave it unset for 1/(10 n)."
            )
        if self.target_epsilon is not None and steps is None:
            raise UnsupportedTrainingError(
                "The noise for a target_epsilon depends on the number of steps: set the trainer's max_epochs or "
                "max_steps, or give noise_multiplier instead."
            )
        # A resumed training goes on with the noise its budget was solved for; solving again would be slow and no safer.
        solved = saved.noise_multiplier if saved is not None else math.nan
        asked = PrivacyTerms(
            clip_norm=self.clip_norm,
            noise_multiplier=self.noise_multiplier if self.noise_multiplier is not None else solved,
            delta=delta,
            sampling_rate=sampling_rate,
            accountant=self.accountant,
            target_epsilon=self.target_epsilon,
            planned_steps=None if self.target_epsilon is None else steps,
        )
        if saved is not None:
            _refuse_changes(saved, asked)
            return saved
        if self.target_epsilon is None or steps is None:
            return asked
        sigma = solve_noise_multiplier(self.target_epsilon, delta, sampling_rate, steps, self.accountant)
        return replace(asked, noise_multiplier=sigma)


def _refuse_changes(saved: PrivacyTerms, asked: PrivacyTerms) -> None:
    before, now = asdict(saved), asdict(asked)
    changed = [f"{key} {before[key]} -> {now[key]}" for key in now if before[key] != now[key]]
    if changed:
        raise UnsupportedTrainingError(
            f"The checkpoint was trained with other privacy settings ({'; '.join(changed)}), and its epsilon would not "
            "be that of the settings. Resume with the settings of the original run, or start a new one."
        )
