"""What a gradient attacker is given, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ReleasedGradient:
    """The gradient of one batch exactly as a defence releases it.

    Attributes:
        gradients: one tensor for each trainable parameter, in the order of ``module.named_parameters()``. Undefended it
            is the gradient of the MEAN loss over the batch; a DP-SGD release is (sum of clipped gradients + noise) /
            batch size.
        batch_size: number of examples in the batch (known to the attacker).
        clip_norm: the defence's clipping norm, known to the adaptive attacker; None without clipping.
        noise_std: standard deviation of the noise in ``gradients`` (after division by the batch size); 0.0 without.
    """

    gradients: tuple[Tensor, ...]
    batch_size: int
    clip_norm: float | None = None
    noise_std: float = 0.0
