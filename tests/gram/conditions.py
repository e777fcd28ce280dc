"""Plain torch modules that are awkward for an engine that reads per-example gradients off a batched pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.gram.architectures import randomize
from tests.gram.condition_modules import (
    Attends,
    Bare,
    BiasedAttention,
    ClassToken,
    FunctionalLinear,
    Language,
    LearnedQueries,
    Merged,
    Own,
    TimeFirst,
    Unrolled,
    WholeState,
    expanded,
    parametrized,
    recurrent,
    repeated,
    seq,
    transformer_layer,
    whole_transformer,
)


@dataclass(frozen=True)
class Condition:
    """A module, shapes of its inputs, and where the examples are in them.

    Attributes:
        name: shown by pytest.
        build: the module, in train mode.
        shapes: of each positional input without the batch axis; an ``int`` is a number of token ids an example.
        batch_size: number of examples B.
        batch_axis: where the batch stands in inputs and output.
        refusable: names of which one must be in the error that may come instead of a matrix; empty: must be exact.
        time_first: what the user says of layers that take (time, batch, ...).
    """

    name: str
    build: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...] | int, ...]
    batch_size: int = 4
    batch_axis: int = 0
    refusable: tuple[str, ...] = ()
    time_first: tuple[str, ...] = ()

    def module(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        torch.manual_seed(0)
        return randomize(self.build().train()).to(dtype)

    def inputs(self, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        torch.manual_seed(1)
        made = []
        for shape in self.shapes:
            if isinstance(shape, int):
                made.append(torch.randint(0, 7, (self.batch_size, shape)))
            else:
                made.append(torch.randn(self.batch_size, *shape, dtype=dtype).movedim(0, self.batch_axis).contiguous())
        return made

    def losses(self, module: nn.Module, inputs: list[Tensor]) -> Tensor:
        """Loss of each example (B,), uneven over the entries of the output so that no symmetry hides an error."""
        output = module(*inputs)
        if isinstance(output, tuple):
            output = output[0]
        y = output.movedim(self.batch_axis, 0).flatten(1)
        weights = torch.cos(torch.arange(y.shape[1], dtype=y.dtype) + 0.3)
        return ((y * weights) ** 2 + y).sum(dim=1)


LAYERS = ("into", "norm", "out")

EXACT = (
    Condition("transposed conv1d", lambda: seq(up=nn.ConvTranspose1d(3, 4, 3, stride=2, padding=1), tanh=nn.Tanh(),
              down=nn.Conv1d(4, 2, 2)), ((3, 6),)),
    Condition("transposed conv2d, groups, dilation",
              lambda: nn.ConvTranspose2d(4, 4, 3, 2, 1, 1, groups=2, dilation=2), ((4, 5, 4),)),
    Condition("transposed conv3d", lambda: nn.ConvTranspose3d(2, 3, 2, bias=False), ((2, 3, 3, 3),)),
    Condition("bilinear", lambda: nn.Bilinear(4, 5, 3), ((4,), (5,))),
    Condition("bilinear on a sequence, T = B", lambda: nn.Bilinear(4, 5, 3), ((4, 4), (4, 5))),
    *(
        Condition(f"{kind.__name__}, batch_first={first}, T = B" + extra,
                  recurrent(kind, batch_first=first, **settings), ((4, 5),), 4, 0 if first else 1)
        for kind in (nn.RNN, nn.LSTM, nn.GRU)
        for first in (True, False)
        for extra, settings in (("", {}), (", two layers both ways", {"num_layers": 2, "bidirectional": True}))
    ),
    Condition("lstm with projection", recurrent(nn.LSTM, batch_first=True, proj_size=3), ((6, 5),), 3),
    Condition("lstm, last states, batch first", lambda: WholeState(True), ((6, 5),), 3),
    Condition("lstm, last states, T = B", lambda: WholeState(True), ((4, 5),)),
    Condition("lstm cell, unrolled, T = B", Unrolled, ((4, 5),)),
    Condition("weight norm", lambda: parametrized(parametrizations.weight_norm, nn.Linear(5, 4)), ((3, 5),)),
    Condition("weight norm of a convolution", lambda: parametrizations.weight_norm(nn.Conv2d(2, 3, 3)), ((2, 5, 5),)),
    Condition("orthogonal", lambda: parametrized(parametrizations.orthogonal, nn.Linear(4, 4)), ((4,),)),
    Condition("position table", lambda: Own((1, 3, 6), lambda m, x: x + m.own), ((3, 5),)),
    Condition("position table, T = B", lambda: Own((4, 6), lambda m, x: x + m.own), ((4, 5),)),
    Condition("position table, sliced", lambda: Own((1, 9, 6), lambda m, x: x + m.own[:, : x.shape[1]]), ((4, 5),)),
    Condition("layer scale", lambda: Own((6,), lambda m, x: x * m.own), ((3, 5),)),
    Condition("layer scale, in place", lambda: Own((6,), lambda m, x: (x * m.own).add_(x)), ((3, 5),)),
    Condition("layer scale of one value", lambda: Own((), lambda m, x: x * m.own.exp()), ((4, 5),)),
    Condition("parameter used twice", lambda: Own((6,), lambda m, x: torch.sin(x * m.own) + m.own), ((4, 5),)),
    Condition("weight used by F.linear", lambda: Own((6, 6), lambda m, x: F.linear(x, m.own)), ((4, 5),)),
    Condition("weight used by matmul", lambda: Own((6, 6), lambda m, x: x @ m.own), ((5,),)),
    Condition("weight used by einsum", lambda: Own((6, 6), lambda m, x: torch.einsum("btc,dc->btd", x, m.own)),
              ((4, 5),)),
    Condition("only a bare weight", lambda: Bare(lambda m, x: F.linear(x, m.p0, m.p1), (3, 5), (3,)), ((4, 5),)),
    Condition("table lookup", lambda: Bare(lambda m, ids: m.p0[ids] @ m.p1, (7, 4), (4, 3)), (4,)),
    Condition("class token and positions", ClassToken, ((4, 5),)),
    Condition("class token and positions, T = B", ClassToken, ((4, 5),), 5),
    Condition("functional use of a linear layer", FunctionalLinear, ((4, 5),)),
    Condition("functional use besides its own", lambda: FunctionalLinear(also=True), ((4, 5),)),
    Condition("relative position bias", lambda: BiasedAttention(fused=False), ((4, 6),)),
    Condition("relative position bias in the kernel", lambda: BiasedAttention(fused=True), ((4, 6),), 3),
    Condition("relative position bias in the kernel, T = B", lambda: BiasedAttention(fused=True), ((4, 6),)),
    Condition("tied language model, T = B", Language, (4,)),
    Condition("tied language model, recurrent", lambda: Language(recurrent=True), (5,)),
    Condition("attention, batch first, T = B", lambda: Attends(batch_first=True), ((4, 6),)),
    Condition("attention, time first", lambda: Attends(), ((3, 6),), 4, 1),
    Condition("attention, time first, T = B", lambda: Attends(), ((4, 6),), 4, 1),
    Condition("attention, extra key and zero", lambda: Attends(batch_first=True, add_bias_kv=True, add_zero_attn=True),
              ((3, 6),)),
    Condition("attention to another sequence", lambda: Attends(batch_first=True, kdim=5, vdim=5), ((4, 6), (3, 5))),
    Condition("learned queries, T = B", lambda: LearnedQueries(True, expanded), ((4, 6),), 4),
    Condition("learned queries, repeated", lambda: LearnedQueries(True, repeated), ((3, 6),), 3),
    Condition("learned queries, time first", lambda: LearnedQueries(False, expanded), ((3, 6),), 4, 1),
    Condition("attention, dropout", lambda: Attends(batch_first=True, dropout=0.2), ((4, 6),)),
    Condition("time first within", TimeFirst, ((3, 5),), time_first=LAYERS),
    Condition("time first within, T = B", TimeFirst, ((4, 5),), time_first=LAYERS),
    Condition("merged axes, batch-major", lambda: Merged(time_major=False), ((3, 5),)),
    Condition("merged axes, batch-major, T = B", lambda: Merged(time_major=False), ((4, 5),)),
    *(
        Condition(f"{kind.__name__}, batch_first={first}, T = {length}" + (", norm first" if norm_first else ""),
                  partial(transformer_layer, kind, first, norm_first=norm_first),
                  ((length, 6),) * count, 4, 0 if first else 1)
        for kind, count in ((nn.TransformerEncoderLayer, 1), (nn.TransformerDecoderLayer, 2))
        for first in (True, False)
        for length, norm_first in ((4, False), (3, True))
    ),
    Condition("transformer, batch first", lambda: whole_transformer(True), ((4, 6), (3, 6))),
    Condition("transformer, time first", lambda: whole_transformer(False), ((4, 6), (3, 6)), 4, 1),
)  # fmt: skip

EXACT_OR_REFUSED = (
    Condition("time first within, unsaid", TimeFirst, ((3, 5),), refusable=LAYERS),
    Condition("merged axes, time-major, unsaid", lambda: Merged(time_major=True), ((3, 5),), refusable=LAYERS),
    Condition("merged axes, time-major", lambda: Merged(time_major=True), ((3, 5),), refusable=LAYERS,
              time_first=LAYERS),
    Condition("merged axes, time-major, T = B", lambda: Merged(time_major=True), ((4, 5),), refusable=LAYERS,
              time_first=LAYERS),
    Condition("lstm, last states, time first within, T = B", lambda: WholeState(batch_first=False), ((4, 5),),
              refusable=("rnn",)),
    Condition("lstm, dropout", lambda: seq(lstm=nn.LSTM(5, 4, num_layers=2, dropout=0.3, batch_first=True)),
              ((3, 5),), refusable=("lstm",)),
    Condition("dropout after a bare parameter", lambda: Own((6,), lambda m, x: F.dropout(x * m.own, 0.4)), ((3, 5),),
              refusable=("own",)),
    Condition("dropout before a bare parameter", lambda: Own((6,), lambda m, x: F.dropout(x, 0.4) * m.own), ((3, 5),),
              refusable=("own",)),
    Condition("dropout of a bare parameter", lambda: Own((6,), lambda m, x: x * F.dropout(m.own, 0.4)), ((3, 5),),
              refusable=("own",)),
    Condition("alpha dropout, T = B", lambda: Own((4, 6), lambda m, x: F.alpha_dropout(x + m.own, 0.3, True)),
              ((4, 5),), refusable=("own",)),
    Condition("noise and a bare parameter", lambda: Own((6,), lambda m, x: x + m.own * torch.randn_like(x)),
              ((3, 5),), refusable=("own",)),
    Condition("dropout of attention beside a table", lambda: BiasedAttention(fused=False, dropout=0.3), ((4, 6),),
              refusable=("table",)),
    Condition("dropout in the kernel beside a table", lambda: BiasedAttention(fused=True, dropout=0.3), ((4, 6),),
              refusable=("table",)),
    Condition("spectral norm", lambda: parametrized(parametrizations.spectral_norm, nn.Linear(5, 4)), ((3, 5),),
              refusable=("first",)),
)  # fmt: skip
"""Where the definition gives a matrix, but an engine may say that it does not know it; a wrong one is an error."""


COUPLED: dict[str, Callable[[Own, Tensor], Tensor]] = {
    "parameter times the mean of the batch": lambda m, x: x - x.mean(0) * m.own,
    "centered by the batch before": lambda m, x: (x - x.mean(0, keepdim=True)) * m.own,
    "centered by the batch after": lambda m, x: x * m.own - (x * m.own).mean(dim=0),
    "batch norm by hand": lambda m, x: (x - x.mean((0, 1))) / x.std((0, 1)) * m.own,
    "functional batch norm": lambda m, x: F.batch_norm(x.transpose(1, 2), None, None, m.own, training=True).mT,
    "softmax over the batch": lambda m, x: torch.softmax(x * m.own, dim=0),
    "running sum over the batch": lambda m, x: (x + m.own).cumsum(0),
}
"""Uses of a bare parameter that mix the examples: none has a gradient of its own."""
