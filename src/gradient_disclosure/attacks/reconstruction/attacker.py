"""What a gradient attacker can compute: the gradient that the defense would release for any dummy batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.reconstruction.released import ReleasedGradient
from gradient_disclosure.attacks.reconstruction.victim import trainable_parameters
from gradient_disclosure.errors import NonFiniteGradientError


def check_released(module: nn.Module, released: ReleasedGradient) -> None:
    """Refuses a released gradient that cannot be of this module, or that holds nothing to attack.

    Args:
        module: the victim's network.
        released: what the defense released.

    Raises:
        AttackInputError: the number or a shape of the gradients does not fit, or all are zero.
        NonFiniteGradientError: a gradient holds NaN or infinity.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> check_released(layer, ReleasedGradient((torch.ones(1, 2), torch.ones(1)), batch_size=1))
    """
    parameters = trainable_parameters(module)
    if len(released.gradients) != len(parameters):
        raise AttackInputError(
            f"{len(released.gradients)} gradients were released, but {type(module).__name__} has {len(parameters)}"
            " trainable parameters: this is the gradient of another model, or other parameters were frozen."
        )
    for (name, parameter), gradient in zip(parameters.items(), released.gradients, strict=True):
        if gradient.shape != parameter.shape:
            raise AttackInputError(
                f"the gradient released for {name} has shape {tuple(gradient.shape)}, but the parameter has shape"
                f" {tuple(parameter.shape)}: this is the gradient of another model."
            )
        if not bool(torch.isfinite(gradient).all()):
            raise NonFiniteGradientError(
                f"the gradient released for {name} holds NaN or infinity: the victim's training has diverged,"
                " and there is nothing to reconstruct."
            )
    if released.batch_size < 1:
        raise AttackInputError(f"batch_size of a released gradient must be at least 1, not {released.batch_size}.")
    if not any(bool(gradient.any()) for gradient in released.gradients):
        raise AttackInputError(
            "every released gradient is zero: nothing was released. Count the example as not released (a censor dropped"
            " it?) instead of attacking it."
        )


class Attacker:
    """The attacker's float64 copy of the released weights, and the gradient it tries to match.

    It knows the defense: with a clipping norm it compares clipped gradients with clipped gradients. The user's module
    is used as a function only and keeps its own parameters.

    Args:
        module: the victim's network.
        released: what the defense released; checked by ``check_released``.

    Attributes:
        batch_size: number of examples in the released batch.
        device: where the module's parameters are.
        released: (P,) float64, the released gradient, flattened.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> attacker = Attacker(layer, ReleasedGradient((torch.ones(2, 2), torch.ones(2)), batch_size=1, clip_norm=0.1))
        >>> gradient = attacker.gradient(torch.ones(1, 2, dtype=torch.float64), torch.tensor([0]))
        >>> round(gradient.norm().item(), 6)
        0.1
    """

    def __init__(self, module: nn.Module, released: ReleasedGradient) -> None:
        check_released(module, released)
        self._module = module
        self._weights = {
            name: _float64(tensor) for name, tensor in (*module.named_parameters(), *module.named_buffers())
        }
        self._trainable = [self._weights[name].requires_grad_() for name in trainable_parameters(module)]
        self._clip_norm = released.clip_norm
        self.batch_size = released.batch_size
        self.device = self._trainable[0].device
        self.released = torch.cat([gradient.flatten() for gradient in released.gradients]).to(
            self.device, torch.float64
        )

    def logits(self, inputs: Tensor) -> Tensor:
        """Logits (B, C) of inputs (B, *shape) float64."""
        logits: Tensor = functional_call(self._module, self._weights, (inputs,))
        return logits

    def gradient(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """What the defense would release for this batch, without the noise; differentiable.

        Args:
            inputs: (B, *shape) float64.
            labels: (B,) int64, or (B, C) probabilities.

        Returns:
            (P,) float64: the gradient of the mean cross entropy, or the mean of the clipped gradients of the examples.
        """
        if self._clip_norm is None:
            return self._plain_gradient(inputs, labels)
        singles = (self._plain_gradient(inputs[i : i + 1], labels[i : i + 1]) for i in range(self.batch_size))
        return torch.stack([_clipped(single, self._clip_norm) for single in singles]).mean(0)

    def _plain_gradient(self, inputs: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(self.logits(inputs), labels)
        gradients = torch.autograd.grad(
            loss, self._trainable, create_graph=True, allow_unused=True, materialize_grads=True
        )
        return torch.cat([gradient.flatten() for gradient in gradients])


def _clipped(gradient: Tensor, clip_norm: float) -> Tensor:
    norm = torch.linalg.vector_norm(gradient)
    clipped: Tensor = gradient * (clip_norm / norm.clamp(min=clip_norm))
    return clipped


def _float64(tensor: Tensor) -> Tensor:
    """A detached copy; floating point numbers in float64."""
    return tensor.detach().to(torch.float64, copy=True) if tensor.is_floating_point() else tensor.detach().clone()
