"""What DP-SGD releases of one batch: the input of a gradient reconstruction attack."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradient_disclosure.attacks.reconstruction.released import ReleasedGradient
from gradient_disclosure.errors import UnsupportedTrainingError


def release_dp_sgd(
    per_example_gradients: Sequence[Tensor],
    *,
    clip_norm: float,
    noise_multiplier: float,
    generator: torch.Generator,
) -> ReleasedGradient:
    """Clip each example's gradient to C, add noise of standard deviation σC to the sum, divide by the batch size.

    The rule of Abadi et al. 2016, "Deep Learning with Differential Privacy", with Opacus's clipping factor
    min(1, C / (‖g‖ + 1e-6)), the norm taken over all parameters together.

    Args:
        per_example_gradients: for each trainable parameter (B, *parameter shape), B at least 1.
        clip_norm: C.
        noise_multiplier: σ.
        generator: source of the noise, on the device of the gradients.

    Returns:
        The released gradient; its ``noise_std`` is σC/B.

    Raises:
        UnsupportedTrainingError: there is no parameter, or the batch is empty.

    Example:
        >>> gradients = [torch.tensor([[3.0, 4.0], [0.0, 0.5]])]
        >>> released = release_dp_sgd(gradients, clip_norm=1.0, noise_multiplier=0.0, generator=torch.Generator())
        >>> released.gradients[0]
        tensor([0.3000, 0.6500])
    """
    batch_size = per_example_gradients[0].shape[0] if per_example_gradients else 0
    if batch_size == 0:
        raise UnsupportedTrainingError("DP-SGD has no gradient to release: no parameter was given, or an empty batch.")
    norms = torch.stack([g.reshape(batch_size, -1).norm(dim=1) for g in per_example_gradients]).norm(dim=0)
    factors = (clip_norm / (norms + 1e-6)).clamp(max=1.0)
    noise_std = noise_multiplier * clip_norm / batch_size

    def released(gradient: Tensor) -> Tensor:
        mean = torch.einsum("i,i...->...", factors, gradient) / batch_size
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
        return mean + noise_std * noise

    return ReleasedGradient(
        gradients=tuple(released(gradient) for gradient in per_example_gradients),
        batch_size=batch_size,
        clip_norm=clip_norm,
        noise_std=noise_std,
    )
