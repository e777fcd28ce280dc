"""``nn.MultiheadAttention``: all its weights act inside one function, so that function's core is run again.

The module hands its weights to ``F.multi_head_attention_forward`` and never calls ``out_proj``, so no hook sees what
goes into a projection or comes back from it. From the saved arguments and generator state the projections and the
attention core are recomputed by the calls torch itself makes, dropout included; a backward pass through the core alone
then gives the gradient at each projection's output, and with the projection's input that is the per-example gradient.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradient_disclosure.errors import IncompleteGramError, UnsupportedLayerError
from gradient_disclosure.gram.call import LayerCall
from gradient_disclosure.gram.registry import ParameterTerm, register_call_terms
from gradient_disclosure.gram.terms import Dense, OuterProduct

SEPARATE_WEIGHTS = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
COVERED = {"in_proj_weight", *SEPARATE_WEIGHTS, "in_proj_bias", "out_proj.weight", "out_proj.bias", "bias_k", "bias_v"}


@register_call_terms(nn.MultiheadAttention)
def multihead_attention_terms(call: LayerCall) -> Iterator[ParameterTerm]:
    """Terms of every trainable parameter of an ``nn.MultiheadAttention`` from one of its runs.

    Dropout is that of the real run if ``call.state`` was taken just before it with ``random=True``. Gradients of both
    outputs count, the attention weights' too; parameters that no gradient has reached get no term.

    Args:
        call: a batched run, its inputs (B, T, n) or, without ``batch_first``, (T, B, n).

    Yields:
        (name relative to the module, term), in float32 or the run's own precision if that is higher.

    Raises:
        UnsupportedLayerError: unbatched inputs, or trainable parameters that torch's module does not have.
        IncompleteGramError: the inputs have another number of examples than the batch.

    Example:
        >>> import torch
        >>> from gradient_disclosure.gram.call import ForwardState
        >>> attention = torch.nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)
        >>> x = torch.randn(3, 5, 4)
        >>> before = ForwardState.now(x.device, random=True)
        >>> output, weights = attention(x, x, x)
        >>> call = LayerCall(attention, (x, x, x), {}, (torch.ones_like(output), None), before, batch_size=3)
        >>> {name: tuple(term.gram().shape) for name, term in multihead_attention_terms(call)}
        {'out_proj.weight': (3, 3), 'out_proj.bias': (3, 3), 'in_proj_weight': (3, 3), 'in_proj_bias': (3, 3)}
    """
    module = call.module
    assert isinstance(module, nn.MultiheadAttention)
    trainable = {name for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
    _refuse_unknown(trainable)
    if all(gradient is None for gradient in call.gradients):
        return
    for name, term in _all_terms(module, call):
        if name in trainable:
            yield name, term


def _refuse_unknown(trainable: set[str]) -> None:
    """Raise for parameters of a module whose weights have been reparametrized or whose parts have been replaced."""
    unknown = sorted(trainable - COVERED)
    if unknown:
        raise UnsupportedLayerError(
            f"no per-example gradient is known for {', '.join(unknown)} of an nn.MultiheadAttention: its weights are "
            "parametrized or a part of it was replaced. Freeze these parameters (requires_grad_(False)) or leave them "
            "out on purpose with exclude=[...]."
        )


@dataclass(frozen=True)
class _Run:
    """Arguments of one run, inputs time-first as torch works on them: queries (T, B, n), keys and values (S, B, n)."""

    query: Tensor
    key: Tensor
    value: Tensor
    key_padding_mask: Tensor | None
    need_weights: bool
    attn_mask: Tensor | None
    average_attn_weights: bool
    is_causal: bool

    @classmethod
    def of(cls, module: nn.MultiheadAttention, call: LayerCall) -> _Run:
        """Read a call's arguments, or refuse them."""
        bound = inspect.signature(nn.MultiheadAttention.forward).bind(module, *call.args, **call.kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        del arguments["self"]
        shape = tuple(arguments["query"].shape)
        if len(shape) != 3:
            raise UnsupportedLayerError(
                f"nn.MultiheadAttention was called without a batch, on a query of shape {shape}: there are no examples "
                "to tell apart. Give it inputs with three axes."
            )
        axis = 0 if module.batch_first else 1
        if shape[axis] != call.batch_size:
            raise IncompleteGramError(
                f"nn.MultiheadAttention(batch_first={module.batch_first}) received a query of shape {shape} in a batch "
                f"of {call.batch_size}: axis {axis} is not the batch, so its rows cannot be told apart by example. "
                "Check batch_first, and keep the batch as an axis of its own."
            )
        if module.batch_first:
            arguments |= {name: arguments[name].transpose(0, 1) for name in ("query", "key", "value")}
        return cls(**arguments)

    @property
    def mask_left_to_kernel(self) -> bool:
        """Whether torch drops ``attn_mask`` and lets the attention kernel mask causally."""
        return self.is_causal and self.key_padding_mask is None and not self.need_weights

    def additive_mask(self, heads: int, appended: int) -> Tensor | None:
        """What is added to the scores, (1 or B·heads, 1 or T, S + appended); appended keys are never masked."""
        mask = None
        if self.attn_mask is not None and not self.mask_left_to_kernel:
            attn_mask = self._additive(self.attn_mask)
            mask = F.pad(attn_mask.unsqueeze(0) if attn_mask.dim() == 2 else attn_mask, (0, appended))
        if self.key_padding_mask is not None:
            padding = F.pad(self._additive(self.key_padding_mask), (0, appended))
            padding = padding.repeat_interleave(heads, dim=0).unsqueeze(1)
            mask = padding if mask is None else mask + padding
        return mask

    def _additive(self, mask: Tensor) -> Tensor:
        """A boolean mask (True: no attention) as one to add."""
        if mask.dtype != torch.bool:
            return mask
        return torch.zeros_like(mask, dtype=self.query.dtype).masked_fill_(mask, -math.inf)


@dataclass(frozen=True)
class _Projection:
    """Consecutive ones of the query, key and value projections (numbers 0, 1, 2) that torch computes as one product.

    Attributes:
        x: (T, B, n) input.
        y: (T, B, count·E) output, cut off from ``x``.
        first: number of the first of them.
        count: how many they are.
    """

    x: Tensor
    y: Tensor
    first: int
    count: int

    def parts(self) -> list[Tensor]:
        """Its outputs, each (T, B, E)."""
        return [part.contiguous() for part in self.y.chunk(self.count, dim=-1)]


def _projections(module: nn.MultiheadAttention, run: _Run) -> list[_Projection]:
    """All projections of a run, in order, grouped as in ``F.multi_head_attention_forward``."""
    inputs = (run.query, run.key, run.value)
    packed = module._qkv_same_embed_dim
    groups: tuple[tuple[int, int], ...] = ((0, 1), (1, 1), (2, 1))
    if packed and _same(run.key, run.value):
        groups = ((0, 3),) if _same(run.query, run.key) else ((0, 1), (1, 2))
    width = module.embed_dim
    found = []
    for first, count in groups:
        rows = slice(first * width, (first + count) * width)
        weight = module.in_proj_weight[rows] if packed else getattr(module, SEPARATE_WEIGHTS[first])
        bias = None if module.in_proj_bias is None else module.in_proj_bias[rows]
        y = F.linear(inputs[first], weight, bias).detach().requires_grad_()
        found.append(_Projection(inputs[first], y, first, count))
    return found


def _same(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are one, or were before each was detached."""
    return x.data_ptr() == y.data_ptr() and x.shape == y.shape and x.stride() == y.stride()


def _attend(module: nn.MultiheadAttention, run: _Run, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
    """The core of the attention, from projections to what ``out_proj`` gets: torch's own calls in its own layout.

    Args:
        module: gives the number of heads, the dropout and ``add_zero_attn``.
        run: gives the masks and which outputs are wanted.
        q: (T, B, E).
        k: (S, B, E) or, with ``bias_k`` appended, (S + 1, B, E).
        v: the same shape.

    Returns:
        Context (T, B, E) and, if wanted, attention weights (B, T, keys) or (B, heads, T, keys).
    """
    heads, (length, batch, width) = module.num_heads, q.shape
    q, k, v = (x.view(x.shape[0], batch * heads, width // heads).transpose(0, 1) for x in (q, k, v))
    if module.add_zero_attn:
        k, v = (torch.cat([x, x.new_zeros(x.shape[0], 1, x.shape[2])], dim=1) for x in (k, v))
    mask = run.additive_mask(heads, appended=k.shape[1] - run.key.shape[0])
    dropout = module.dropout if module.training else 0.0
    if not run.need_weights:
        if mask is not None:
            mask = mask.unsqueeze(0) if mask.shape[0] == 1 else mask.unflatten(0, (batch, heads))
        q, k, v = (x.unflatten(0, (batch, heads)) for x in (q, k, v))
        context = F.scaled_dot_product_attention(q, k, v, mask, dropout, run.mask_left_to_kernel)
        return context.permute(2, 0, 1, 3).reshape(length, batch, width), None
    q = q * math.sqrt(1.0 / float(q.shape[2]))
    scores = torch.bmm(q, k.transpose(1, 2)) if mask is None else torch.baddbmm(mask, q, k.transpose(1, 2))
    weights = F.softmax(scores, dim=-1)
    if dropout > 0.0:
        weights = F.dropout(weights, p=dropout)
    context = torch.bmm(weights, v).transpose(0, 1).reshape(length, batch, width)
    weights = weights.unflatten(0, (batch, heads))
    return context, weights.mean(dim=1) if run.average_attn_weights else weights


def _all_terms(module: nn.MultiheadAttention, call: LayerCall) -> list[ParameterTerm]:
    """Terms of all parameters that a gradient has reached, trainable or not."""
    run = _Run.of(module, call)
    e_output, e_weights = (*call.gradients, None)[:2]
    with call.state.restored(run.query.device), torch.enable_grad():
        projections = _projections(module, run)
        q, k, v = (part for projection in projections for part in projection.parts())
        appended = _biases_by_example(module, run.query.shape[1])
        if appended:
            k, v = torch.cat([k, appended[0]]), torch.cat([v, appended[1]])
        context, weights = _attend(module, run, q, k, v)
    terms: list[ParameterTerm] = []
    reached: list[tuple[Tensor, Tensor]] = []
    if e_output is not None:
        e_output = e_output.transpose(0, 1) if module.batch_first else e_output
        terms += _output_terms(module, context.detach(), e_output)
        reached.append((context, e_output @ module.out_proj.weight.detach().to(e_output.dtype)))
    if e_weights is not None:
        assert weights is not None
        reached.append((weights, e_weights))
    outputs, gradients = zip(*reached, strict=True)
    leaves = [*(projection.y for projection in projections), *appended]
    received = torch.autograd.grad(outputs, leaves, gradients, allow_unused=True)
    terms += _input_terms(module, projections, received[: len(projections)])
    for name, e in zip(("bias_k", "bias_v"), received[len(projections) :], strict=False):
        if e is not None:
            terms.append((name, Dense(_by_example(e).squeeze(1), (1, 1, module.embed_dim))))
    return terms


def _biases_by_example(module: nn.MultiheadAttention, batch: int) -> list[Tensor]:
    """``bias_k`` and ``bias_v`` as a key and value (1, B, E) for each example; nothing if the module has none."""
    if module.bias_k is None or module.bias_v is None:
        return []
    return [bias.detach().repeat(1, batch, 1).requires_grad_() for bias in (module.bias_k, module.bias_v)]


def _output_terms(module: nn.MultiheadAttention, context: Tensor, e: Tensor) -> Iterator[ParameterTerm]:
    """Terms of ``out_proj`` from its input and output gradient, both (T, B, E)."""
    e = _by_example(e)
    yield "out_proj.weight", OuterProduct(_by_example(context), e, (module.embed_dim, module.embed_dim))
    if module.out_proj.bias is not None:
        yield "out_proj.bias", Dense(e.sum(dim=1), (module.embed_dim,))


def _input_terms(
    module: nn.MultiheadAttention, projections: Sequence[_Projection], received: Sequence[Tensor | None]
) -> Iterator[ParameterTerm]:
    """Terms of the projections' weights and biases from the gradients (T, B, count·E) at their outputs."""
    inputs = [_by_example(projection.x.to(projection.y.dtype)) for projection in projections]
    gradients = [
        _by_example(torch.zeros_like(projection.y) if e is None else e)
        for projection, e in zip(projections, received, strict=True)
    ]
    width = module.embed_dim
    if not module._qkv_same_embed_dim:
        for name, a, e, arrived in zip(SEPARATE_WEIGHTS, inputs, gradients, received, strict=True):
            if arrived is not None:
                yield name, OuterProduct(a, e, (width, a.shape[2]))
    else:
        # Rows of one weight with different inputs: their positions side by side, each with zeros in the others' rows.
        padded = [
            F.pad(e, (projection.first * width, (3 - projection.first - projection.count) * width))
            for projection, e in zip(projections, gradients, strict=True)
        ]
        yield "in_proj_weight", OuterProduct(torch.cat(inputs, dim=1), torch.cat(padded, dim=1), (3 * width, width))
    if module.in_proj_bias is not None:
        yield "in_proj_bias", Dense(torch.cat([e.sum(dim=1) for e in gradients], dim=1), (3 * width,))


def _by_example(x: Tensor) -> Tensor:
    """(T, B, n) → (B, T, n), in float32 at least."""
    return x.transpose(0, 1).to(torch.promote_types(x.dtype, torch.float32))
