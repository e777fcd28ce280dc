"""What one parameter has contributed to a Gram matrix so far."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradient_disclosure.errors import IncompleteGramError
from gradient_disclosure.gram.distributed.pieces import smallest
from gradient_disclosure.gram.outer_product import OuterProduct
from gradient_disclosure.gram.terms import CHUNK_ELEMENTS, Term, concatenate, merge
from gradient_disclosure.gram.tied import TiedHead

ROUNDING_STEPS = 1e3
LARGEST_TOLERANCE = 5e-2
"""However coarse the precision, a difference beyond this fraction is an error, not rounding."""
REDUCED_PRECISION = 5e-3
"""On accelerators a float32 convolution may be computed with 10-bit mantissas (TF32), in autograd and here alike."""


def second_gradient(names: Sequence[str]) -> IncompleteGramError:
    """The error for a second backward pass."""
    return IncompleteGramError(
        f"a second gradient of '{', '.join(names)}' arrived: one GradientGram context holds one backward pass. Add "
        "losses up before backward(), and take gradients of gradients, or gradients of inputs, outside of it."
    )


class ParameterAccount:
    """Collects the uses of one parameter; the sum of all uses enters the Gram, so that cross products are in it.

    Args:
        name: qualified name, for messages.
        parameter: the parameter.
        keep_terms: keep the uses after they entered the Gram.
        verify: compare the sum over the examples with the gradient autograd computed.
        one_pass: the uses of one forward and backward pass are all there is, so that the parameter may enter the Gram
            as soon as the last open one is known.
        chunk_elements: entries of per-example gradients formed at a time.
        mixed: large float32 gradients are multiplied in mixed precision.
        deferred: the Gram is computed elsewhere, from what :meth:`hand_over` gives.
    """

    def __init__(
        self,
        name: str,
        parameter: nn.Parameter,
        *,
        keep_terms: bool,
        verify: bool,
        one_pass: bool = True,
        chunk_elements: int = CHUNK_ELEMENTS,
        mixed: bool = False,
        deferred: bool = False,
    ) -> None:
        self.name = name
        self.parameter = parameter
        self.contributed = False
        self.verified = False
        self.ways: dict[str, float] = {}
        self._keep_terms = keep_terms
        self._verify = verify
        self._one_pass = one_pass
        self._chunk_elements = chunk_elements
        self._mixed = mixed
        self._deferred = deferred
        self._open_uses = 0
        self._announced: list[Tensor] = []
        self._tied: TiedHead | None = None
        self._head_sum: Tensor | None = None
        self._unrecorded_uses = 0
        self._uses: list[Term] = []
        self._micro_batches: list[Term | None] = []
        self._whole: Term | None = None
        self._gram: Tensor | None = None
        self._sum: Tensor | None = None
        self._received: Tensor | None = None
        self._has_received = False
        self._coarsest = torch.finfo(parameter.dtype).eps if parameter.dtype.is_floating_point else 0.0

    def admits_use(self) -> bool:
        """Whether what runs now is a use of its own.

        Checkpointing runs a forward pass twice: without gradients and then for real during the backward pass
        (reentrant), or for real and then, during the backward pass, only to have its tensors again (non-reentrant).
        """
        if not torch.is_grad_enabled():
            self._unrecorded_uses += 1
            return False
        if torch._C._current_graph_task_id() == -1:
            return True
        if self._unrecorded_uses == 0:
            return False
        self._unrecorded_uses -= 1
        return True

    def expect(self, ids: Tensor | None = None) -> None:
        """A forward pass used the parameter once more; ``ids``: it merely looked up these rows."""
        if self.contributed:
            raise IncompleteGramError(
                f"'{self.name}' was used again after its gradient had been computed: one GradientGram context holds "
                "one forward and backward pass. Open a new context for each, or give micro_batches=n where the "
                "gradients of n passes accumulate into one step."
            )
        self._open_uses += 1
        if ids is not None:
            self._announced.append(ids)

    def add(self, term: Term, gradient_dtype: torch.dtype, way: str, seconds: float, *, with_sum: bool = False) -> None:
        """A part of one use's per-example gradients arrived."""
        if self.contributed:
            raise second_gradient([self.name])
        self._coarsest = max(self._coarsest, torch.finfo(gradient_dtype).eps)
        self.ways[way] = self.ways.get(way, 0.0) + seconds
        if not self._take_tied_head(term, with_sum=with_sum):
            self._uses.append(term)

    def deliver(self, terms: Sequence[Term], gradient_dtype: torch.dtype, way: str, seconds: float) -> Tensor:
        """As :meth:`add`, for all of one use; returns its gradient, summed over the examples, as autograd would."""
        term = merge(terms)
        alone = self._open_uses == 1 and not self._uses and self._tied is None and self._is_plain
        was_tied = self._tied is not None
        self.add(term, gradient_dtype, way, seconds, with_sum=True)
        total: Tensor | None = None
        if alone:
            total = self._contribute(with_sum=True)
        elif self._tied is not None and not was_tied:
            total = self._head_sum
        return self.sum_of(terms) if total is None else total.to(self.parameter.dtype)

    def sum_of(self, terms: Sequence[Term]) -> Tensor:
        """``Σ_i G_i`` in the parameter's shape and precision."""
        return merge(terms).weighted_sum(torch.ones(terms[0].batch_size)).to(self.parameter.dtype)

    def finish_use(self) -> None:
        """All of one use arrived, or will never; with the last of them the parameter enters the Gram."""
        self._open_uses -= 1
        if self._open_uses == 0 and self._is_plain and (self._uses or self._tied is not None):
            self._contribute()

    def give_up_use(self) -> None:
        """One use is left to another way of finding its gradients."""
        self._announced = []
        self.finish_use()

    def receive(self, gradient: Tensor) -> None:
        """Autograd computed (a part of) the gradient of the parameter."""
        self._has_received = True
        if self._verify:
            gradient = gradient.detach()
            gradient = gradient.to_dense() if gradient.is_sparse else gradient
            self._received = gradient.clone() if self._received is None else self._received + gradient

    @property
    def has_received(self) -> bool:
        """Whether autograd computed a gradient of the parameter in this pass."""
        return self._has_received

    def end_micro_batch(self) -> None:
        """The uses so far belong to one micro-batch; those to come to another."""
        self._micro_batches.append(merge(self._uses) if self._uses else None)
        self._uses = []
        self._open_uses = 0

    def close(self, batch_sizes: Sequence[int]) -> Tensor | None:
        """The parameter's part (B, B) of the Gram, None if it took no part in the pass.

        Args:
            batch_sizes: number of examples of each micro-batch; a single one without accumulation.

        Raises:
            IncompleteGramError: it received a gradient that the uses seen do not account for.
        """
        if not self._one_pass:
            self._join(batch_sizes)
        elif (self._uses or self._tied is not None) and not self.contributed:
            self._contribute()
        if self._has_received and not self.contributed and sum(batch_sizes) > 0:
            raise IncompleteGramError(
                f"'{self.name}' received a gradient but contributed nothing to the Gram matrix: it is used where "
                "nothing is seen (inside a compiled module, a custom autograd function, a reentrant checkpoint), or "
                "outside the module's forward. Call the layer itself, or leave the parameter out on purpose with "
                "exclude=['" + self.name + "']."
            )
        return self._gram

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """``Σ_i w_i G_i`` in the parameter's precision, from the uses kept."""
        assert self._whole is not None
        return self._whole.weighted_sum(weights).to(self.parameter.dtype)

    def _join(self, batch_sizes: Sequence[int]) -> None:
        if len(self._micro_batches) < len(batch_sizes):
            self.end_micro_batch()
        known = next((part for part in self._micro_batches if part is not None), None)
        if known is None or self.contributed:
            return
        parts = [
            known.parts[0].nothing(size) if part is None else part
            for part, size in zip(self._micro_batches, batch_sizes, strict=True)
        ]
        self._uses = [concatenate(parts)]
        self._contribute()

    @property
    def _is_plain(self) -> bool:
        """One pass in which every use was recorded as it ran."""
        return self._one_pass and self._unrecorded_uses == 0

    def _take_tied_head(self, term: Term, *, with_sum: bool) -> bool:
        """Let an output layer's term enter the Gram at once, if all that is still to come are known lookups."""
        lookups_remain = 0 < len(self._announced) == self._open_uses - 1 and not self._uses
        if not lookups_remain or not self._is_plain or self._keep_terms or self._deferred:
            return False
        if not isinstance(term, OuterProduct) or not TiedHead.applies(term):
            return False
        self._gram, self._head_sum = self._entered(term, with_sum=with_sum)
        self._tied = TiedHead(term, self._announced)
        return True

    def hand_over(self) -> Term | None:
        """What a deferred Gram is computed from, None if the parameter took no part; it is let go here."""
        term, self._whole = self._whole, None
        return term

    def _entered(self, term: Term, *, with_sum: bool) -> tuple[Tensor, Tensor | None]:
        if with_sum or self._verify:
            return term.gram_and_sum(self._chunk_elements, mixed=self._mixed)
        return term.gram(self._chunk_elements, mixed=self._mixed), None

    def _contribute(self, *, with_sum: bool = False) -> Tensor | None:
        """Enter the Gram; the sum over the examples is returned if wanted."""
        total: Tensor | None = None
        term = merge(self._uses) if self._uses else None
        if term is not None and (self._verify or not self._deferred):
            gram, total = self._entered(term, with_sum=with_sum)
            if self._tied is not None:
                cross = self._tied.cross(term, self._chunk_elements)
                gram += cross + cross.T
            self._gram = gram if self._gram is None else self._gram + gram
        self.contributed = True
        if self._verify:
            self._sum = torch.stack([part for part in (total, self._head_sum) if part is not None]).sum(dim=0)
        self._whole = term if self._keep_terms else None
        if self._deferred and term is not None:
            self._whole = smallest(term)
        self._uses, self._tied, self._head_sum = [], None, None
        return total

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
                f"{difference:.3g}, scale {scale:.3g}): a part of its use is not seen, its examples are not on the "
                "first axis (see time_first), or a hook changes gradients on the way. Leave the parameter out on "
                "purpose with exclude=[...] if it cannot be helped."
            )
        # Where everything is zero (behind a head initialized to zero, say) nothing has been compared yet.
        self.verified = difference <= allowed and float(self._received.abs().max()) > 0.0
