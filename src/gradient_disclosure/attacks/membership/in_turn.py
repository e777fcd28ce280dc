"""Every model of a cohort as target in turn, attacked with the others: many targets for the price of the cohort."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.membership.arrays import ArrayLike, as_float64, as_membership

Attack = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(N,) signal of the target, (n, N) signals and (n, N) membership of its shadow models → (N,) scores."""


def pairs_in_turn(membership: ArrayLike) -> Iterator[tuple[int, Tensor]]:
    """Each model, and those that may serve as its shadow models: all but itself and its complement.

    Models come in pairs trained on complementary halves. Whoever attacks one with its complement among the shadow
    models is told its members: an example is then "in" one shadow model fewer exactly if the target trained on it.

    Args:
        membership: (n, N) bool; models 2k and 2k + 1 have complementary members.

    Yields:
        The target's number and (n − 2,) numbers of its shadow models.

    Raises:
        AttackInputError: models that do not come in complementary pairs, or fewer than two pairs.

    Example:
        >>> [(target, others.tolist()) for target, others in pairs_in_turn([[1, 0], [0, 1], [0, 1], [1, 0]])]
        [(0, [2, 3]), (1, [2, 3]), (2, [0, 1]), (3, [0, 1])]
    """
    given = torch.as_tensor(membership)
    masks = as_membership(given, "membership", tuple(given.shape))
    if masks.dim() != 2 or len(masks) < 4 or len(masks) % 2:
        raise AttackInputError(
            f"membership must have shape (n, N) for an even number n of at least 4 models, not {tuple(masks.shape)}."
        )
    unpaired = (masks[::2] == masks[1::2]).any(dim=1).nonzero().squeeze(1)
    if len(unpaired):
        first = 2 * int(unpaired[0])
        raise AttackInputError(f"models {first} and {first + 1} are not trained on complementary halves of the pool.")
    everyone = torch.arange(len(masks))
    for target in range(len(masks)):
        yield target, everyone[everyone // 2 != target // 2]


def scores_in_turn(signals: ArrayLike, membership: ArrayLike, attack: Attack) -> Tensor:
    """Scores of every example under each model as target, attacked with the models of the other pairs.

    Scores of different targets are not independent: they share shadow models, and the two of a pair share their
    examples. An interval over targets should resample pairs.

    Args:
        signals: (n, N) of each example under each model.
        membership: (n, N) bool; models 2k and 2k + 1 have complementary members.
        attack: target's signal, shadow signals, shadow membership → scores.

    Returns:
        (n, N) float64, row i the scores with model i as target.

    Raises:
        AttackInputError: shapes that do not fit, or models that do not come in complementary pairs.

    Example:
        >>> from functools import partial
        >>> from gradient_disclosure.attacks.membership import lira_scores
        >>> signals = torch.tensor([[3.0, 0.0], [0.0, 3.0], [1.0, 4.0], [4.0, 1.0], [5.0, 1.5], [1.5, 5.0]])
        >>> masks = torch.tensor([[1, 0], [0, 1], [0, 1], [1, 0], [1, 0], [0, 1]])
        >>> (scores_in_turn(signals, masks, partial(lira_scores, online=True)) > 0)[0].tolist()
        [True, False]
    """
    values = as_float64(signals, "signals", ndim=2)
    masks = as_membership(membership, "membership", tuple(values.shape))
    rows = [attack(values[target], values[others], masks[others]) for target, others in pairs_in_turn(masks)]
    return torch.stack(rows)
