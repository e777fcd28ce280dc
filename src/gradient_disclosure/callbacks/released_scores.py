"""Scores of what a step releases: its gradients as they are, or clipped and noised."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from gradient_disclosure.ledger import Exposure
from gradient_disclosure.scores.clipping import GaussianMechanism
from gradient_disclosure.scores.gnq import GnqResult, gradient_uniqueness
from gradient_disclosure.scores.scoring import Scoring

Mechanism = GaussianMechanism | Callable[[], GaussianMechanism]


def released_scores(
    gram: Tensor, scoring: Scoring, mechanism: Mechanism | None, exposure: Exposure | None
) -> GnqResult:
    """Scores of a batch.

    Args:
        gram: (B, B) inner products of the examples' own gradients.
        scoring: how a batch is scored that is released as it is.
        mechanism: clipping and noise of DP-SGD; a callable is asked.
        exposure: how often an example is drawn, if that is known.

    Returns:
        The scores; under a mechanism those of the clipped gradients, with the real noise as damping.

    Example:
        >>> import torch
        >>> released_scores(torch.eye(2), Scoring(), None, None).scores.round(decimals=6).tolist()
        [100.0, 100.0]
    """
    sampling = None if exposure is None else exposure.sampling
    if mechanism is None:
        return scoring.score(gram, sampling)
    in_force = mechanism() if callable(mechanism) else mechanism
    assert sampling is not None
    return gradient_uniqueness(in_force.clipped(gram), in_force.damping(sampling))
