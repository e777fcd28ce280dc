"""The Gram matrix of per-example gradients, read off one ordinary backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from gradient_disclosure.errors import DisclosureError, IncompleteGramError
from gradient_disclosure.gram import layers  # noqa: F401  (registers them)
from gradient_disclosure.gram.account import ParameterAccount
from gradient_disclosure.gram.compiled import run_eagerly
from gradient_disclosure.gram.coverage import CoverageReport, CoverageRow
from gradient_disclosure.gram.distributed.global_batch import GlobalBatch, OwnShare
from gradient_disclosure.gram.names import is_excluded, refuse_complex, refuse_idle_patterns, time_first_names
from gradient_disclosure.gram.observer import PassObserver
from gradient_disclosure.gram.options import (
    LossReduction,
    Mode,
    Products,
    checked_mode,
    checked_products,
    checked_reduction,
    entries_within,
)


class GradientGram:
    """Exact inner products of per-example gradients over ALL trainable parameters, without a second backward pass.

    A context manager around one forward and backward pass. It observes inputs and output gradients of each layer
    through hooks that live as long as the context, changes no value of the training and leaves nothing on the module.
    A parameter that no known layer accounts for (a bare ``nn.Parameter``, a weight used by another module, a custom
    layer) is followed to the operations where it meets the data, and its per-example gradient taken there; where that
    cannot be exact, the run stops and names the parameter. :attr:`report` says what was found in which way.

    The first axis of each layer's input must be the batch. What torch's own recurrent and transformer layers take
    time-first is known; name others with ``time_first``. A layer that gets another number of rows than the batch has is
    an error; one that works time-first on as many steps as there are examples, and is not named, is found by ``verify``
    alone. A loss in which the examples meet OUTSIDE of the module (a contrastive one) is not found at all: what is
    returned then are the inner products of the gradients that reach the module through each example's outputs.

    Args:
        module: any module.
        loss_reduction: how the loss reduces over the examples of the batch. With "mean", autograd's gradients are 1/B
            of each example's own, which is undone. For a loss that is a mean over the tokens of all examples, an
            example's own loss is then B times its share of the batch loss.
        exclude: patterns (``fnmatch``) of parameter names to leave out on purpose; :attr:`coverage` then falls below 1.
        keep_terms: keep what :meth:`weighted_gradient` needs until the context is left (a censor subtracts with it).
        verify: check that the per-example gradients of each parameter add up to the gradient autograd computed, and
            that no example acts on the output of another (not where modules have backward hooks of their own, or are
            sharded). It costs about as much as another backward pass, and runs the user's tensor hooks once more.
        micro_batches: number of forward and backward passes whose gradients accumulate into one step. Their examples
            form one Gram, cross products included; the inputs of all passes are kept until the context is left.
        time_first: patterns of names of modules that take (time, batch, ...), "" for the module itself.
        mode: "untouched": training is bitwise what it would be, and the per-example gradients are formed beside the
            gradients that autograd forms. "reuse": autograd does not form the weight gradients of known layers; their
            ``.grad`` is the sum of the per-example ones, equal but for rounding, and nearly all of the cost is saved
            where layers see sequences or images. No gradients of gradients then. A pass with ``verify`` compares with
            autograd's gradients, so it is computed as "untouched": give ``verify=False`` where the time counts.
        memory_budget_mb: about how much may be held at a time to form the per-example gradients of a parameter, on top
            of a layer's inputs and output gradients.
        products: how inner products of float32 gradients are summed. "float64": exactly but for one rounding.
            "mixed": in float32 over 128 entries and in float64 beyond, for blocks of a million entries and more; about
            1e-9 of ``|g_i| |g_j|`` is lost, which matters only where λ is below 1e-4 of the mean of the diagonal, and
            for pseudo-inverses. None: "float64", and "mixed" in the mode "reuse".
        ranks: processes whose examples form one batch; every one of them then has the Gram of the whole batch. None:
            the examples of this process alone, however many there are.

    Raises:
        BatchCouplingError: on entry, for layers that normalize over the batch; during the pass, where examples mix.

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
        micro_batches: int = 1,
        time_first: Sequence[str] = (),
        mode: Mode = "untouched",
        memory_budget_mb: float = 64.0,
        products: Products | None = None,
        ranks: GlobalBatch | None = None,
    ) -> None:
        if ranks is not None and keep_terms:
            raise ValueError("keep_terms is for the examples of one process: leave out keep_terms or ranks")
        checked_mode(mode)
        checked_products(products)
        checked_reduction(loss_reduction)
        if micro_batches < 1:
            raise ValueError(f"micro_batches must be at least 1, got {micro_batches}")
        self._module = module
        self._reduction = loss_reduction
        self._exclude = tuple(exclude)
        self._keep_terms = keep_terms
        self._verify = verify
        self._micro_batches = micro_batches
        self._time_first = tuple(time_first)
        self._mode = mode
        self._products = products or ("mixed" if mode == "reuse" else "float64")
        self._chunk_elements = entries_within(memory_budget_mb)
        self._ranks = ranks
        self._of_all_ranks: tuple[Tensor, Tensor] | None = None
        self._handles: list[Any] = []
        self._accounts: dict[int, ParameterAccount] = {}
        self._observer: PassObserver | None = None
        self._eager: Any = None
        self._sizes: list[int] | None = None
        self._coverage: float | None = None
        self._report: CoverageReport | None = None
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
        """Number of examples in the pass, those of all micro-batches together."""
        return sum(self._batch_sizes())

    @property
    def report(self) -> CoverageReport:
        """What was found in which way and what it cost, once the Gram matrix is known."""
        if self._report is None:
            raise DisclosureError("the coverage report is known once gram() has been called or the context was left")
        return self._report

    def __enter__(self) -> GradientGram:
        self._sizes = self._result = self._report = self._of_all_ranks = None
        if self._ranks is not None:
            self._ranks.check()
        named = list(self._module.named_parameters())
        refuse_complex(named)
        refuse_idle_patterns(self._exclude, [name for name, _ in named])
        self._accounts = {
            id(parameter): ParameterAccount(
                name,
                parameter,
                keep_terms=self._keep_terms,
                verify=self._verify,
                one_pass=self._micro_batches == 1,
                chunk_elements=self._chunk_elements,
                mixed=self._products == "mixed",
                deferred=self._ranks is not None,
            )
            for name, parameter in named
            if parameter.requires_grad and not is_excluded(name, self._exclude)
        }
        trainable = sum(parameter.numel() for _, parameter in named if parameter.requires_grad)
        covered = sum(account.parameter.numel() for account in self._accounts.values())
        self._coverage = covered / trainable if trainable else 1.0
        self._observer = PassObserver(
            self._module,
            self._accounts,
            time_first_names(self._module, self._time_first),
            self._verify,
            self._micro_batches,
            reuse=self._mode == "reuse" and not self._verify,
        )
        self._active = True
        try:
            for account in self._accounts.values():
                self._handles.append(account.parameter.register_hook(account.receive))
            self._eager = run_eagerly(self._module)
            self._observer.attach()
        except BaseException:
            self.abandon()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            ran = self._observer is not None and (self._ranks is not None or self._observer.batch_sizes())
            if error is None and ran:
                self.gram()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Leave the context without computing anything more."""
        self._active = False
        if self._observer is not None:
            self._sizes = self._observer.batch_sizes() or self._sizes
            self._observer.detach()
            self._observer = None
        if self._eager is not None:
            self._eager.close()
            self._eager = None
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
            (B, B) float64, symmetric positive semi-definite, on the device of the gradients. With ``ranks``, B counts
            the examples of all, in the order of the ranks.

        Raises:
            IncompleteGramError: nothing ran inside the context, or a parameter received a gradient of which not every
                part is in the matrix.
        """
        with torch._C.DisableTorchFunction():  # nothing here need be followed
            return self._gram(loss_scale) if self._ranks is None else self._gram_of(self._ranks, loss_scale)

    def _gram_of(self, ranks: GlobalBatch, loss_scale: float) -> Tensor:
        """Gram of the examples of all ranks."""
        if self._of_all_ranks is None:
            try:
                self._gram(1.0)
                sizes = self._batch_sizes()
            except Exception as error:
                ranks.report(error)  # the others wait
                raise
            accounts = list(self._accounts.values())
            share = OwnShare(
                terms=[account.hand_over() for account in accounts],
                names=[account.name for account in accounts],
                sizes=sizes,
                factors=[float(size) if self._reduction == "mean" else 1.0 for size in sizes],
                device=accounts[0].parameter.device if accounts else torch.device("cpu"),
                gram_of=lambda term: term.gram(self._chunk_elements, mixed=self._products == "mixed"),
            )
            self._of_all_ranks = ranks.gram(share)
        total, scale = self._of_all_ranks
        return total * (scale[:, None] * scale) / loss_scale**2

    def _gram(self, loss_scale: float) -> Tensor:
        if self._result is None:
            sizes = self._batch_sizes()
            size = sum(sizes)
            self._refuse_incomplete_pass(size)
            total: Tensor | None = None
            for account in self._accounts.values():
                part = account.close(sizes)
                if part is not None:
                    total = part.clone() if total is None else total.add_(part.to(total.device))
            self._result = torch.zeros(size, size, dtype=torch.float64) if total is None else total
            self._check_sums(size, float(self._result.diagonal().sum()))
            self._report = CoverageReport(
                tuple(CoverageRow.of(account) for account in self._accounts.values()), self.coverage
            )
        if len(self._batch_sizes()) == 1:
            factor = float(self.batch_size) if self._reduction == "mean" else 1.0
            return self._result * (factor / loss_scale) ** 2
        scale = self._example_scale().to(self._result.device) / loss_scale
        return self._result * scale[:, None] * scale

    def weighted_gradient(self, weights: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
        """``Σ_i w_i g_i`` of the examples' own gradients, from what the pass already computed; needs ``keep_terms``.

        Args:
            weights: (B,) real.

        Returns:
            (parameter, sum) of each parameter that contributed in this pass, in the parameter's own precision.
        """
        if not (self._keep_terms and self._active):
            raise DisclosureError("weighted_gradient needs GradientGram(..., keep_terms=True) and an open context")
        scaled = weights.double() * self._example_scale().to(weights.device)
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
        known = {account.name for account in self._accounts.values()}
        late = [
            name
            for name, parameter in self._module.named_parameters()
            if parameter.requires_grad and name not in known and not is_excluded(name, self._exclude)
        ]
        if late:
            raise IncompleteGramError(
                f"{', '.join(late)} became trainable after the context was entered and are not in the Gram matrix. Set "
                "requires_grad before the step begins."
            )

    def _batch_sizes(self) -> list[int]:
        """Number of examples of each micro-batch; a single one without accumulation."""
        known = self._observer.batch_sizes() if self._observer is not None else self._sizes
        if not known:
            raise IncompleteGramError(
                "no layer of the module ran inside this context. Call the module itself (not a copy), with gradients "
                "enabled, and loss.backward() inside 'with'."
            )
        return known

    def _example_scale(self) -> Tensor:
        """(B,): what autograd's gradient of an example is multiplied with to give that of the example's own loss."""
        sizes = torch.tensor(self._batch_sizes())
        factors = sizes.double() if self._reduction == "mean" else torch.ones(len(sizes), dtype=torch.float64)
        return factors.repeat_interleave(sizes)
