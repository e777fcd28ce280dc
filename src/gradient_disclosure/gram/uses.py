"""A use of parameters that waits for its gradients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import register_multi_grad_hook

from gradient_disclosure.errors import IncompleteGramError
from gradient_disclosure.gram.account import ParameterAccount, second_gradient
from gradient_disclosure.gram.delivery import delivered
from gradient_disclosure.gram.terms import Term

AccountTerms = Iterator[tuple[int, Term]]
"""(id of a parameter, term)."""


class OpenUse:
    """One use of some parameters, from its forward pass until its gradients arrive.

    Args:
        accounts: the parameters' accounts by ``id`` of the parameter.
        way: how the per-example gradients are found, for the coverage report.
        resolve: gradients of the watched tensors → terms; called during the backward pass.
        alive: whether the context is still open.
        ids: rows that the use merely looks up.
    """

    def __init__(
        self,
        accounts: dict[int, ParameterAccount],
        way: str,
        resolve: Callable[[Sequence[Tensor | None]], AccountTerms],
        alive: Callable[[], bool],
        *,
        ids: Tensor | None = None,
    ) -> None:
        self._accounts = dict(accounts)
        self._way = way
        self._resolve: Callable[[Sequence[Tensor | None]], AccountTerms] | None = resolve
        self._alive = alive
        for account in accounts.values():
            account.expect(ids)

    def cancel(self, parameters: set[int]) -> None:
        """Leave some parameters to another way of finding their gradients."""
        for key in parameters & self._accounts.keys():
            self._accounts.pop(key).give_up_use()

    def watch(self, tensors: Sequence[Tensor], *, may_change: bool = True) -> None:
        """Wait for the gradients of these tensors; ``may_change``: others may change them in place."""
        hookable = [_hookable(tensor) if may_change else tensor for tensor in tensors]
        shapes = [tensor.shape for tensor in tensors]

        def arrived(gradients: Sequence[Tensor | None]) -> None:
            shaped = [None if g is None else g.detach().reshape(s) for g, s in zip(gradients, shapes, strict=True)]
            self._arrived(shaped)

        if len(hookable) == 1:
            hookable[0].register_hook(lambda gradient: arrived([gradient]))
        elif hookable:
            register_multi_grad_hook(hookable, arrived)

    def deliver(self, output: Any, deliver_to: dict[int, ParameterAccount]) -> Any:
        """The output, through which parameters get the gradients found here instead of autograd's own.

        Args:
            output: of the layer.
            deliver_to: accounts of these parameters; they need not be this use's: what does not count, because it is
                merely run again or left to another way, needs its gradient all the same.
        """

        def resolve(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
            first = next((gradient for gradient in gradients if gradient is not None), None)
            if first is None:
                return [None] * len(deliver_to)
            counts = self._accounts if self._alive() else {}
            found = self._found_in(gradients, deliver_to)
            totals: list[Tensor | None] = []
            for key, account in deliver_to.items():
                terms, seconds = found.pop(key)
                if key in counts:
                    totals.append(account.deliver(terms, first.dtype, self._way, seconds))
                    account.finish_use()
                else:
                    totals.append(account.sum_of(terms))
            return totals

        return delivered(output, [account.parameter for account in deliver_to.values()], resolve)

    def _found_in(
        self, gradients: Sequence[Tensor | None], accounts: dict[int, ParameterAccount]
    ) -> dict[int, tuple[list[Term], float]]:
        """Terms of each parameter, and the seconds they took."""
        found: dict[int, tuple[list[Term], float]] = {}
        start = time.perf_counter()
        for key, term in self._terms(gradients):
            now = time.perf_counter()
            terms, seconds = found.get(key, ([], 0.0))
            found[key] = [*terms, term], seconds + now - start
            start = now
        missing = [account.name for key, account in accounts.items() if key not in found]
        if missing:
            raise IncompleteGramError(
                f"the function registered for {self._way} gave nothing for {', '.join(missing)}, so mode='reuse' has "
                "no gradient for it. Use mode='untouched'."
            )
        return found

    def _terms(self, gradients: Sequence[Tensor | None]) -> AccountTerms:
        """What the gradients resolve to, once: what is needed for it is then let go."""
        if self._resolve is None:
            raise second_gradient([account.name for account in self._accounts.values()])
        resolve, self._resolve = self._resolve, None
        return resolve(gradients)

    def _arrived(self, gradients: Sequence[Tensor | None]) -> None:
        first = next((gradient for gradient in gradients if gradient is not None), None)
        if not self._alive() or first is None or not self._accounts:
            return
        start = time.perf_counter()
        for key, term in self._terms(gradients):
            now = time.perf_counter()
            if key in self._accounts:
                self._accounts[key].add(term, first.dtype, self._way, now - start)
            start = now
        for account in self._accounts.values():
            account.finish_use()


def _hookable(output: Tensor) -> Any:
    """The tensor whose gradient hook survives an in-place operation on ``output``.

    Some layers return a view of the whole of a tensor of their own (a linear layer on sequences). An in-place
    activation then rewrites the view's history, and a hook on it is lost; one on the base is not.
    """
    base = output._base
    if base is None or base.grad_fn is None or base.numel() != output.numel():
        return output
    same_order = base.is_contiguous() and output.is_contiguous()
    return base if same_order else output
