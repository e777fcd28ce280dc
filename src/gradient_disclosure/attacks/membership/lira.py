"""The likelihood ratio attack: is the target's signal likelier among models that saw the example?"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.membership.arrays import ArrayLike, as_float64, as_membership, shown

# A variance this small beside the signals is rounding, not spread.
_ROUNDING = 1e-24


def lira_scores(
    target_signal: ArrayLike,
    shadow_signals: ArrayLike,
    shadow_membership: ArrayLike,
    *,
    online: bool,
    variance: Literal["pooled", "per_example"] = "pooled",
) -> Tensor:
    """Membership scores of LiRA (Carlini et al. 2022, "Membership inference attacks from first principles").

    Each example's signal is taken as normal among the shadow models that trained on it ("in") and among those that did
    not ("out"). The attacker sees the released model's logits and has trained the shadow models with the target's own
    procedure, defense included.

    * online: log N(target; μ_in, σ²_in) − log N(target; μ_out, σ²_out).
    * offline: log Φ((target − μ_out) / σ_out), the log probability that an out model would stay below the target. It is
      computed in log space, so that far members are still ranked.

    Args:
        target_signal: (N,) signal of each example under the target, usually ``logit_scaled_confidence``.
        shadow_signals: (n, N) the same signal under each of n shadow models.
        shadow_membership: (n, N) bool, True where that model trained on that example.
        online: whether the in models are used; False needs out models only.
        variance: "pooled" estimates one σ²_in and one σ²_out from all examples' deviations about their own means (each
            mean costs a degree of freedom), the better choice below some 64 shadow models; "per_example" estimates one
            for each example.

    Returns:
        (N,) float64, higher for a likelier member.

    Raises:
        AttackInputError: shapes that do not fit, NaN or infinity, an example with too few in or out models, or signals
            without any spread; the message names the examples.

    Example:
        >>> shadow = torch.tensor([[4.0, 0.5], [5.0, -0.5], [1.0, 6.0], [0.0, 5.0]])
        >>> seen = torch.tensor([[1, 0], [1, 0], [0, 1], [0, 1]])
        >>> lira_scores(torch.tensor([4.5, 0.0]), shadow, seen, online=True).tolist()
        [16.0, -30.25]
    """
    target = as_float64(target_signal, "target_signal", ndim=1)
    signals = as_float64(shadow_signals, "shadow_signals", ndim=2)
    if signals.shape[1] != len(target):
        raise AttackInputError(
            f"shadow_signals must have shape (n, {len(target)}): one column for each example of target_signal; its"
            f" shape is {tuple(signals.shape)}."
        )
    if variance not in ("pooled", "per_example"):
        raise AttackInputError(f'variance must be "pooled" or "per_example", not {variance!r}.')
    member = as_membership(shadow_membership, "shadow_membership", tuple(signals.shape))

    out_mean, out_variance = _normal_fit(signals, ~member, "out", pooled=variance == "pooled")
    if not online:
        log_cdf: Tensor = torch.special.log_ndtr((target - out_mean) / out_variance.sqrt())
        return log_cdf
    in_mean, in_variance = _normal_fit(signals, member, "in", pooled=variance == "pooled")
    return _log_normal(target, in_mean, in_variance) - _log_normal(target, out_mean, out_variance)


def _normal_fit(signals: Tensor, mask: Tensor, side: str, *, pooled: bool) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance, (N,) each, of every example's signals where the mask holds."""
    counts = mask.sum(0)
    needed = 1 if pooled else 2
    few = (counts < needed).nonzero().squeeze(1)
    if len(few):
        raise AttackInputError(
            f'the "{side}" distribution needs at least {needed} model(s) for each example, but examples {shown(few)}'
            " have fewer: train more shadow models on balanced half splits"
            + ("." if pooled else ', or use variance="pooled".')
        )
    mean = torch.where(mask, signals, 0.0).sum(0) / counts
    squares = torch.where(mask, (signals - mean).square(), 0.0).sum(0)
    freedom = counts - 1
    if pooled:
        if freedom.sum() == 0:
            raise AttackInputError(
                f'no example has more than one "{side}" model, so the variance cannot be estimated: train more.'
            )
        variance = (squares.sum() / freedom.sum()).expand_as(mean)
    else:
        variance = squares / freedom
    flat = (variance <= _ROUNDING * mean.square().clamp(min=1.0)).nonzero().squeeze(1)
    if len(flat):
        raise AttackInputError(
            f'the "{side}" signals of examples {shown(flat)} are the same under every shadow model, so a likelihood'
            " ratio is not defined: "
            + ("check that the models differ." if pooled else 'use variance="pooled" or train more shadow models.')
        )
    return mean, variance


def _log_normal(value: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Log density of a normal distribution, elementwise."""
    return -0.5 * ((value - mean).square() / variance + variance.log() + math.log(2 * math.pi))
