"""How a dummy batch is moved towards a smaller loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from gradient_disclosure.attacks.reconstruction.descent import Descent


class MatchingOptimizer(Protocol):
    """Runs one descent until it is solved, stuck, diverged or out of iterations."""

    def run(self, descent: Descent, progress: Callable[[float], None]) -> None:
        """Moves ``descent.variables``; calls ``progress`` with the fraction of the iterations done."""
        ...


@dataclass(frozen=True)
class LBFGS:
    """L-BFGS with a strong Wolfe line search, the optimizer of DLG; the value range does not bound it.

    Attributes:
        iterations: the most L-BFGS iterations, each of about 1.2 gradient evaluations.
        history: number of remembered steps.
        block: iterations between two looks at the progress.
        patience: the descent is given up where a block leaves the loss above this fraction of what it was.

    Example:
        >>> from gradient_disclosure.attacks.reconstruction.scale import InputScale
        >>> x = torch.tensor([3.0, -1.0], dtype=torch.float64, requires_grad=True)
        >>> descent = Descent([x], lambda v: (v[0].square().sum(), torch.zeros(())), InputScale.of(None), 1e-12)
        >>> LBFGS(iterations=20).run(descent, progress=lambda fraction: None)
        >>> descent.solved
        True
    """

    iterations: int
    history: int = 20
    block: int = 20
    patience: float = 0.8

    def run(self, descent: Descent, progress: Callable[[float], None]) -> None:
        """Minimizes block by block."""
        # No tolerance of torch's own: a gradient at the end of training is small, not converged.
        optimizer = torch.optim.LBFGS(
            descent.variables,
            history_size=self.history,
            tolerance_grad=0.0,
            tolerance_change=1e-16,
            line_search_fn="strong_wolfe",
        )
        done = 0
        while done < self.iterations:
            block = min(self.block, self.iterations - done)
            optimizer.param_groups[0].update(max_iter=block, max_eval=2 * block)
            before = descent.loss
            optimizer.step(descent.evaluate)
            done += block
            progress(done / self.iterations)
            stuck = descent.best is None or descent.loss > self.patience * before
            if descent.solved or stuck:
                return


@dataclass(frozen=True)
class SignedAdam:
    """Adam on the sign of the gradient, projected to the value range, with step decay (Geiping et al. 2020).

    Attributes:
        iterations: number of steps, each of one gradient evaluation.
        step_size: first step, in units of half the value range; divided by 10 after 3/8, 5/8 and 7/8 of the iterations.

    Example:
        >>> from gradient_disclosure.attacks.reconstruction.scale import InputScale
        >>> x = torch.tensor([3.0], requires_grad=True)
        >>> descent = Descent([x], lambda v: (v[0].square().sum(), torch.zeros(())), InputScale.of((-1.0, 1.0)), 1e-4)
        >>> SignedAdam(iterations=40).run(descent, progress=lambda fraction: None)
        >>> descent.solved
        True
    """

    iterations: int
    step_size: float = 0.4

    def run(self, descent: Descent, progress: Callable[[float], None]) -> None:
        """Minimizes step by step; the last point is evaluated too."""
        optimizer = torch.optim.Adam(descent.variables, lr=self.step_size)
        milestones = [self.iterations * eighths // 8 for eighths in (3, 5, 7)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
        descent.project()
        for step in range(self.iterations):
            loss = descent.evaluate()
            if descent.solved or not bool(torch.isfinite(loss)):
                return
            for variable in descent.variables:
                assert variable.grad is not None
                variable.grad.sign_()
            optimizer.step()
            schedule.step()
            descent.project()
            progress((step + 1) / self.iterations)
        descent.evaluate()
