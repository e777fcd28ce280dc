"""What is checked at each step of DP-SGD: the loss, the per-example gradients, the noisy gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradient_disclosure.callbacks.training_facts import is_plainly_a_sum
from gradient_disclosure.errors import InvalidBatchError, NonFiniteGradientError, UnsupportedTrainingError


def index_of(batch: Any) -> Tensor:
    """(B,) pool indices of a batch ``(inputs, labels, index)``.

    Raises:
        InvalidBatchError: the batch has another form.

    Example:
        >>> index_of((torch.zeros(2, 3), torch.zeros(2), torch.tensor([4, 7])))
        tensor([4, 7])
    """
    if isinstance(batch, (tuple, list)) and len(batch) == 3 and isinstance(batch[2], Tensor):
        return batch[2]
    raise InvalidBatchError(
        "DP-SGD needs batches (inputs, labels, index), as BatchLoader gives them, to know which are empty. A hook of "
        "the module made something else of it."
    )


def check_loss(loss: Tensor, step: int, index: Tensor) -> None:
    """Refuse a loss that is not finite, or plainly a sum over the batch.

    Opacus takes the loss for a mean and multiplies with the batch size. With a sum, the presence of one member would
    scale the gradients of all others before they are clipped, and ε would not hold. Seen are torch's own losses with
    reduction "sum", and with reduction "none" followed by ``.sum()``.

    Args:
        loss: what Lightning is about to call backward on: the loss divided by accumulate_grad_batches = 1.
        step: number of the step, for the message.
        index: (B,) the examples of the batch, for the message.

    Raises:
        UnsupportedTrainingError: it is a sum.
        NonFiniteGradientError: it is NaN or infinite.

    Example:
        >>> errors = torch.nn.functional.mse_loss(torch.ones(3, requires_grad=True), torch.zeros(3), reduction="none")
        >>> check_loss(errors.mean() / 1, 0, torch.arange(3))
        >>> check_loss(errors.sum() / 1, 0, torch.arange(3))
        Traceback (most recent call last):
        ...
        gradient_disclosure.errors.UnsupportedTrainingError: DP-SGD: the loss is a sum over the batch. Return its mean.
    """
    if is_plainly_a_sum(loss):
        raise UnsupportedTrainingError("DP-SGD: the loss is a sum over the batch. Return its mean.")
    if not torch.isfinite(loss):
        raise NonFiniteGradientError(
            f"The loss is {loss.item()} at step {step}, on examples {index.tolist()}. Lower the learning rate, or look "
            "at these inputs."
        )


def check_per_example_gradients(module: nn.Module, batch_size: int, *, against_autograd: bool) -> None:
    """Make sure that Opacus saw every gradient of a step, once for each example.

    Args:
        module: the module after its backward pass, with ``grad_sample`` on its parameters.
        batch_size: number of examples of the batch, at least 1.
        against_autograd: also compare their mean with ``p.grad``, which finds parts of the loss that Opacus drops.

    Raises:
        UnsupportedTrainingError: a gradient is missing, is not there once for each example, or has other parts.

    Example:
        >>> layer = torch.nn.Linear(2, 1, bias=False)
        >>> layer.weight.grad_sample = torch.zeros(3, 1, 2)
        >>> check_per_example_gradients(layer, 3, against_autograd=False)
    """
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        gradients = getattr(parameter, "grad_sample", None)
        if gradients is None:
            raise UnsupportedTrainingError(
                f"DP-SGD: {name} is trainable but has no per-example gradient. training_step returned None or did not "
                "use it, used it outside the forward of its layer, or ran its layer more often than it went into the "
                "loss. Mend that, or freeze it with requires_grad_(False)."
            )
        rows = gradients.shape[0] if isinstance(gradients, Tensor) else [g.shape[0] for g in gradients]
        if rows != batch_size:
            raise UnsupportedTrainingError(
                f"DP-SGD: {name} has {rows} per-example gradients in a batch of {batch_size}. The first axis of its "
                "layer's input is not the batch; an input that is broadcast over the batch has to be expanded."
            )
        if against_autograd and parameter.grad is not None:
            scale = gradients.reshape(batch_size, -1).norm(dim=1).mean()
            if (parameter.grad - gradients.mean(dim=0)).norm() > 1e-3 * scale + 1e-12:
                raise UnsupportedTrainingError(
                    f"DP-SGD: the gradient of {name} is not the mean of its per-example gradients. The loss has a part "
                    "that does not come from single examples, such as a penalty on the weights, and DP-SGD would drop "
                    "it. Use the optimizer's weight_decay, or a loss that is a mean over the examples."
                )


def check_noisy_gradient(parameters: Sequence[Any], step: int, index: Tensor) -> None:
    """Stop before the weights change if the clipped and noisy gradient is not finite.

    Args:
        parameters: parameters with ``grad`` (noisy) and ``grad_sample`` (per example).
        step: number of the step, for the message.
        index: (B,) the examples of the batch, for the message.

    Raises:
        NonFiniteGradientError: it is not finite; the message names the examples.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> weight.grad_sample = torch.tensor([[0.0, 1.0], [0.0, torch.nan]])
        >>> weight.grad = weight.grad_sample.mean(dim=0)
        >>> check_noisy_gradient([weight], step=3, index=torch.tensor([5, 6]))
        Traceback (most recent call last):
        ...
        gradient_disclosure.errors.NonFiniteGradientError: The gradient is not finite at step 3, because of [6]. ...
    """
    if torch.isfinite(torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters])):
        return
    norms = torch.stack([p.grad_sample.reshape(len(index), -1).norm(dim=1) for p in parameters]).norm(dim=0)
    raise NonFiniteGradientError(
        f"The gradient is not finite at step {step}, because of {index[~torch.isfinite(norms)].tolist()}. The step was "
        "not taken. Lower the learning rate, or look at these examples."
    )
