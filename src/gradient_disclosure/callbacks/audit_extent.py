"""How much of a training an audit has seen, for the labels of its scores."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from gradient_disclosure.audit_labels import covered_parameters, every_nth_step
from gradient_disclosure.gram.engine import GradientGram


@dataclass(frozen=True)
class AuditExtent:
    """Steps and parameters in the audit.

    Attributes:
        every_n_steps: one step of so many is audited.
        covered: number of entries of the parameters in the Gram.
        trainable: number of entries of all trainable parameters.

    Example:
        >>> AuditExtent(5, 650, 13_000).in_words()
        ('audited every 5th step (one drawn at random of each 5)', '650 of 13,000 parameters (coverage 5.0 %)')
        >>> AuditExtent(1, 13_000, 13_000).in_words()
        ()
    """

    every_n_steps: int
    covered: int
    trainable: int

    @classmethod
    def of(cls, every_n_steps: int, gram: GradientGram, module: nn.Module) -> AuditExtent:
        """What an open context covers of a module."""
        trainable = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
        return cls(every_n_steps, sum(parameter.numel() for parameter in gram.parameters), trainable)

    def in_words(self) -> tuple[str, ...]:
        """One label for each thing that is not audited whole; empty for a full audit."""
        labels = []
        if self.every_n_steps > 1:
            labels.append(every_nth_step(self.every_n_steps))
        if self.covered < self.trainable:
            labels.append(covered_parameters(self.covered, self.trainable))
        return tuple(labels)
