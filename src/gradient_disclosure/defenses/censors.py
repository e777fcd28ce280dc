"""The censor and its random control as defenses of a whole training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lightning.pytorch import Callback

from gradient_disclosure.defenses.gnq_censor import Censor, CensorRule, GnqCensor, RandomCensor
from gradient_disclosure.defenses.undefended import Undefended
from gradient_disclosure.training.batches import derived_seed
from gradient_disclosure.training.defense import AuditRequest, audit_of


@dataclass(frozen=True)
class GnqCensorDefense(Undefended):
    """Drop examples whose running GNQ would pass the rule's budget, within the run (no formal guarantee).

    Example:
        >>> GnqCensorDefense().name
        'gnq_censor'
    """

    rule: CensorRule = field(default_factory=CensorRule)

    @property
    def name(self) -> str:
        """Name in configs, tables and results."""
        return "gnq_censor"

    def callbacks(self, request: AuditRequest) -> list[Callback]:
        """The audit with the censor in it; a censor cannot do without its audit."""
        return [request.settings.callback(request.pool_size, censor=self._censor(request.seed))]

    def summary(self, callbacks: Sequence[Callback]) -> Mapping[str, float | int | str | None]:
        """Number of censored examples and their share of the members seen."""
        audit = audit_of(callbacks)
        assert audit is not None
        return {
            "censored": audit.ledger.n_censored,
            "censored_fraction": audit.ledger.n_censored / max(1, len(audit.ledger)),
        }

    def _censor(self, seed: int) -> Censor:
        return GnqCensor(self.rule)


@dataclass(frozen=True)
class RandomCensorDefense(GnqCensorDefense):
    """The control: as many examples dropped, at the same steps, at random.

    Example:
        >>> RandomCensorDefense().name
        'random_censor'
    """

    @property
    def name(self) -> str:
        """Name in configs, tables and results."""
        return "random_censor"

    def _censor(self, seed: int) -> Censor:
        return RandomCensor(self.rule, seed=derived_seed("random censor", seed))
