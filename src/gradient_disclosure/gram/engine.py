"""The Gram matrix of per-example gradients, read off one ordinary backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gradient_disclosure.errors import DisclosureError, IncompleteGramError
from gradient_disclosure.gram import convolution, linear, normalization  # noqa: F401  (register the layers)
from gradient_disclosure.gram.account import ParameterAccount
from gradient_disclosure.gram.registry import GramTerms, layers_with_parameters, owned_parameters

LossReduction = Literal["mean", "sum"]


class GradientGram:
    """Exact inner products of per-example gradients over ALL trainable parameters, without a second backward pass.

    A context manager around one forward and backward pass. It observes inputs and output gradients of each layer
    through hooks that live as long as the context, changes no value of the training and leaves nothing on the module.

    The first axis of each layer's input must be the batch. A layer that gets another number of rows is an error; one
    that works time-first on as many time steps as there are examples cannot be told apart: its part would be wrong.

    Args:
        module: any module. Every trainable parameter must belong to a supported layer; anything else stops here, by
            name.
        loss_reduction: how the loss reduces over the examples of the batch. With "mean", autograd's gradients are 1/B
            of each example's own, which is undone.
        exclude: patterns (``fnmatch``) of parameter names to leave out on purpose; :attr:`coverage` then falls below 1.
        keep_terms: keep what :meth:`weighted_gradient` needs until the context is left (a censor subtracts with it).
        verify: check that the per-example gradients of each parameter add up to the gradient autograd computed. It
            costs about a third of a backward pass and finds parameters that are also used outside their layer's
            ``forward``.

    Raises:
        UnsupportedLayerError: on entry, for trainable parameters no function is registered for.
        BatchCouplingError: on entry, for layers that normalize over the batch.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(3, 2)
        >>> x, y = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
        >>> with GradientGram(model, loss_reduction="mean") as gram:
        ...     torch.nn.functional.cross_entropy(model(x), y).backward()
        >>> gram.gram().shape, gram.coverage
        (torch.Size([4, 4]), 1.0)
    """

    def __init__(
        self,
        module: nn.Module,
        loss_reduction: LossReduction = "mean",
        *,
        exclude: Sequence[str] = (),
        keep_terms: bool = False,
        verify: bool = True,
    ) -> None:
        if loss_reduction not in ("mean", "sum"):
            raise ValueError(f"loss_reduction must be 'mean' or 'sum', got {loss_reduction!r}")
        self._module = module
        self._reduction = loss_reduction
        self._exclude = tuple(exclude)
        self._keep_terms = keep_terms
        self._verify = verify
        self._handles: list[Any] = []
        self._accounts: dict[int, ParameterAccount] = {}
        self._batch_size: int | None = None
        self._coverage: float | None = None
        self._result: Tensor | None = None
        self._active = False
        self._verified = False

    @property
    def coverage(self) -> float:
        """Fraction of the trainable parameters' entries in the Gram matrix; 1.0 unless ``exclude`` was used."""
        if self._coverage is None:
            raise DisclosureError(
                "coverage is known once the context has been entered: use 'with GradientGram(...) as gram'"
            )
        return self._coverage

    @property
    def batch_size(self) -> int:
        """Number of examples in the pass."""
        if self._batch_size is None:
            raise IncompleteGramError(
                "no layer of the module ran inside this context. Call the module itself (not a copy, and not a version "
                "compiled before the context was entered), with gradients enabled, and loss.backward() inside 'with'."
            )
        return self._batch_size

    def __enter__(self) -> GradientGram:
        self._accounts = {}
        self._batch_size = self._result = None
        for name, parameter in self._module.named_parameters():
            if parameter.requires_grad and not self._is_excluded(name):
                self._accounts[id(parameter)] = ParameterAccount(name, parameter, self._keep_terms, self._verify)
        self._refuse_idle_patterns()
        trainable = sum(p.numel() for p in self._module.parameters() if p.requires_grad)
        covered = sum(account.parameter.numel() for account in self._accounts.values())
        self._coverage = covered / trainable if trainable else 1.0
        for name, layer, function in layers_with_parameters(self._module, self._accounts):
            self._handles.append(layer.register_forward_hook(self._observe(name, function), with_kwargs=True))
        for account in self._accounts.values():
            self._handles.append(account.parameter.register_hook(account.receive))
        self._active = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self._batch_size is not None:
                self.gram()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Leave the context without computing anything more."""
        self._active = False
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._accounts = {}

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters in the Gram matrix, while the context is open."""
        return [account.parameter for account in self._accounts.values()]

    @property
    def verified(self) -> bool:
        """Whether this pass compared every parameter's per-example gradients with a gradient that is not zero."""
        return self._verified

    def gram(self, loss_scale: float = 1.0) -> Tensor:
        """Inner products of the gradients of each example's OWN loss.

        Args:
            loss_scale: factor the loss was multiplied with before ``backward`` (a gradient scaler's); it is undone.

        Returns:
            (B, B) float64, symmetric positive semi-definite, on the device of the gradients.

        Raises:
            IncompleteGramError: nothing ran inside the context, or a parameter received a gradient of which not every
                part is in the matrix.
        """
        if self._result is None:
            size = self.batch_size
            self._refuse_incomplete_pass(size)
            total: Tensor | None = None
            for account in self._accounts.values():
                part = account.close(size)
                if part is not None:
                    total = part.clone() if total is None else total.add_(part.to(total.device))
            self._result = torch.zeros(size, size, dtype=torch.float64) if total is None else total
            self._check_sums(size, float(self._result.diagonal().sum()))
        unscale = (self._example_scale() / loss_scale) ** 2
        return self._result * unscale

    def weighted_gradient(self, weights: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
        """``Σ_i w_i g_i`` of the examples' own gradients, from what the pass already computed; needs ``keep_terms``.

        Args:
            weights: (B,) real.

        Returns:
            (parameter, sum) of each parameter that contributed in this pass, in the parameter's own precision.
        """
        if not (self._keep_terms and self._active):
            raise DisclosureError("weighted_gradient needs GradientGram(..., keep_terms=True) and an open context")
        scaled = weights * self._example_scale()
        return [
            (account.parameter, account.weighted_sum(scaled))
            for account in self._accounts.values()
            if account.contributed
        ]

    def _check_sums(self, size: int, trace: float) -> None:
        took_part = [account for account in self._accounts.values() if account.contributed]
        for account in took_part:
            account.check_sum(size, trace)
        self._verified = self._verify and all(account.verified for account in took_part)

    def _refuse_incomplete_pass(self, size: int) -> None:
        """Stop if no gradient arrived, or if parameters became trainable after the context was entered."""
        if size > 0 and self._accounts and not any(account.has_received for account in self._accounts.values()):
            raise IncompleteGramError(
                "no gradient has arrived: call loss.backward() inside the 'with' block, and gram() after it."
            )
        late = [
            name
            for name, parameter in self._module.named_parameters()
            if parameter.requires_grad and id(parameter) not in self._accounts and not self._is_excluded(name)
        ]
        if late:
            raise IncompleteGramError(
                f"{', '.join(late)} became trainable after the context was entered and are not in the Gram matrix. Set "
                "requires_grad before the step begins."
            )

    def _example_scale(self) -> float:
        """What autograd's gradient of one example is multiplied with to give that of the example's own loss."""
        return float(self.batch_size) if self._reduction == "mean" else 1.0

    def _is_excluded(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._exclude)

    def _refuse_idle_patterns(self) -> None:
        """A pattern that matches nothing is a typo, and what it was meant to leave out would go unnoticed."""
        names = [name for name, _ in self._module.named_parameters()]
        idle = [pattern for pattern in self._exclude if not any(fnmatchcase(name, pattern) for name in names)]
        if idle:
            raise DisclosureError(
                f"exclude={idle} matches no parameter. Patterns are of parameter names, e.g. 'body.2.*' for all of "
                f"layer 'body.2'; the names here begin with {names[:3]}."
            )

    def _observe(self, name: str, function: GramTerms) -> Callable[..., None]:
        """Forward hook of one layer: remember the input, and wait for the gradient of the output."""

        def forward_hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if not (torch.is_grad_enabled() and isinstance(output, Tensor) and output.requires_grad):
                return
            x = (args[0] if args else next(iter(kwargs.values()))).detach()
            self._agree_on_batch_size(name, x.shape[0])
            accounts = self._accounts_of(layer)
            for account in accounts.values():
                account.expect()
            version, shape = x._version, output.shape

            def gradient_hook(e: Tensor) -> None:
                if not self._active:
                    return
                if x._version != version:
                    raise IncompleteGramError(f"the input of '{name}' was changed in place before the backward pass")
                if e.shape[0] == 0:
                    return
                dtype = torch.promote_types(torch.promote_types(x.dtype, e.dtype), torch.float32)
                for local, term in function(layer, x.to(dtype), e.detach().reshape(shape).to(dtype)):
                    if local in accounts:
                        accounts[local].add(term, e.dtype)

            _hookable(output).register_hook(gradient_hook)

        return forward_hook

    def _accounts_of(self, layer: nn.Module) -> dict[str, ParameterAccount]:
        return {local: self._accounts[key] for local, key in owned_parameters(layer, self._accounts).items()}

    def _agree_on_batch_size(self, name: str, size: int) -> None:
        if self._batch_size is None:
            self._batch_size = size
        elif size != self._batch_size:
            raise IncompleteGramError(
                f"'{name}' received {size} rows where other layers received {self._batch_size}: its first axis is not "
                "the batch (or another batch ran in the same context), so its rows cannot be told apart by example. "
                "Keep the batch as first axis through this layer."
            )


def _hookable(output: Tensor) -> Tensor:
    """The tensor whose gradient hook survives an in-place operation on ``output``.

    Some layers return a view of the whole of a tensor of their own (a linear layer on sequences). An in-place
    activation then rewrites the view's history, and a hook on it is lost; one on the base is not.
    """
    base = output._base
    if base is None or base.grad_fn is None or base.numel() != output.numel():
        return output
    same_order = base.is_contiguous() and output.is_contiguous()
    return base if same_order else output
