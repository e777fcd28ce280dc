"""What one parameter has contributed to a Gram matrix so far."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gradient_disclosure.errors import IncompleteGramError
from gradient_disclosure.gram.terms import Term, merge

ROUNDING_STEPS = 1e3
LARGEST_TOLERANCE = 5e-2
"""However coarse the precision, a difference beyond this fraction is an error, not rounding."""
REDUCED_PRECISION = 5e-3
"""On accelerators a float32 convolution may be computed with 10-bit mantissas (TF32), in autograd and here alike."""


class ParameterAccount:
    """Collects the uses of one parameter; the sum of all uses enters the Gram, so that cross products are in it.

    Args:
        name: qualified name, for messages.
        parameter: the parameter.
        keep_terms: keep the uses after they entered the Gram.
        verify: compare the sum over the examples with the gradient autograd computed.
    """

    def __init__(self, name: str, parameter: nn.Parameter, keep_terms: bool, verify: bool) -> None:
        self.name = name
        self.parameter = parameter
        self.contributed = False
        self.verified = False
        self._keep_terms = keep_terms
        self._verify = verify
        self._open_uses = 0
        self._uses: list[Term] = []
        self._gram: Tensor | None = None
        self._sum: Tensor | None = None
        self._received: Tensor | None = None
        self._has_received = False
        self._coarsest = torch.finfo(parameter.dtype).eps if parameter.dtype.is_floating_point else 0.0

    def expect(self) -> None:
        """A forward pass used the parameter once more."""
        if self.contributed:
            raise IncompleteGramError(
                f"'{self.name}' was used again after its gradient had been computed: one GradientGram context holds "
                "one forward and backward pass. Open a new context for each."
            )
        self._open_uses += 1

    def add(self, term: Term, gradient_dtype: torch.dtype) -> None:
        """One use's per-example gradients arrived; with the last of them the parameter enters the Gram."""
        self._coarsest = max(self._coarsest, torch.finfo(gradient_dtype).eps)
        self._uses.append(term)
        self._open_uses -= 1
        if self._open_uses == 0:
            self._contribute()

    def receive(self, gradient: Tensor) -> None:
        """Autograd computed (a part of) the gradient of the parameter."""
        self._has_received = True
        if self._verify:
            self._received = gradient.detach().clone() if self._received is None else self._received + gradient.detach()

    @property
    def has_received(self) -> bool:
        """Whether autograd computed a gradient of the parameter in this pass."""
        return self._has_received

    def close(self, batch_size: int) -> Tensor | None:
        """The parameter's part (B, B) of the Gram, None if it took no part in the pass.

        Raises:
            IncompleteGramError: it received a gradient that the uses seen do not account for.
        """
        if self._uses and not self.contributed:
            self._contribute()
        if self._has_received and not self.contributed and batch_size > 0:
            raise IncompleteGramError(
                f"'{self.name}' received a gradient but contributed nothing to the Gram matrix: it is used outside the "
                "forward of the layer that owns it, or the module was compiled before the context was entered. Call "
                "the layer itself, or leave the parameter out on purpose with exclude=['" + self.name + "']."
            )
        return self._gram

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """``Σ_i w_i G_i`` in the parameter's precision, from the uses kept."""
        return merge(self._uses).weighted_sum(weights).to(self.parameter.dtype)

    def _contribute(self) -> None:
        term = merge(self._uses)
        self._gram = term.gram()
        self.contributed = True
        if self._verify:
            ones = torch.ones(term.batch_size, device=self._gram.device)
            self._sum = term.weighted_sum(ones)
        self._uses = [term] if self._keep_terms else []

    def check_sum(self, batch_size: int, trace: float) -> None:
        """Compare the sum over the examples with the gradient autograd computed, if that was asked for.

        Args:
            batch_size: B.
            trace: trace of the whole Gram matrix, the scale of rounding errors that come from other parameters.

        Raises:
            IncompleteGramError: they differ by more than rounding.
        """
        if self._sum is None or self._received is None or self._gram is None:
            return
        difference = float((self._sum.double() - self._received.double()).norm())
        # Cauchy–Schwarz: no sum over B examples is longer than this, so it is the scale of its rounding errors.
        scale = math.sqrt(batch_size * float(self._gram.diagonal().sum()))
        relative = min(LARGEST_TOLERANCE, ROUNDING_STEPS * self._coarsest)
        if self._sum.is_cuda:
            relative = max(relative, REDUCED_PRECISION)
        allowed = relative * scale + 10.0 * self._coarsest * math.sqrt(batch_size * trace)
        if math.isfinite(difference) and difference > allowed:
            raise IncompleteGramError(
                f"the per-example gradients of '{self.name}' do not add up to its gradient (difference "
                f"{difference:.3g}, scale {scale:.3g}): it is also used outside the forward of the layer that owns "
                "it, or a hook changes gradients on the way. Call the layer itself, or leave the parameter out on "
                "purpose with exclude=[...]."
            )
        # Where everything is zero (behind a head initialized to zero, say) nothing has been compared yet.
        self.verified = difference <= allowed and float(self._received.abs().max()) > 0.0
