"""Modules for the conditions: parameters and axes where an engine does not expect them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def seq(**layers: nn.Module) -> nn.Module:
    """The layers in a row, by name."""
    return nn.Sequential(OrderedDict(layers))


def parametrized(how: Callable[[nn.Module], nn.Module], layer: nn.Linear) -> nn.Module:
    """A layer whose weight is computed from other parameters, then an ordinary one."""
    return seq(first=how(layer), tanh=nn.Tanh(), last=nn.Linear(4, 2))


class Own(nn.Module):
    """A linear layer, then ``use(self, x)`` with a bare parameter of the given shape, then a linear layer."""

    def __init__(self, shape: tuple[int, ...], use: Callable[[Own, Tensor], Tensor], inner: int = 6) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(5, 6), nn.Linear(inner, 3)
        self.own = nn.Parameter(torch.randn(shape))
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return self.after(torch.tanh(self.use(self, self.before(x))))


class Bare(nn.Module):
    """Only ``use(self, *inputs)`` with bare parameters of the given shapes, ``p0``, ``p1``, …"""

    def __init__(self, use: Callable[..., Tensor], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.use = use
        for i, shape in enumerate(shapes):
            setattr(self, f"p{i}", nn.Parameter(torch.randn(shape)))

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.use(self, *inputs)


class ClassToken(nn.Module):
    """A vision transformer's beginning: class token in front, then a table of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, 6)), nn.Parameter(torch.randn(1, 5, 6))
        self.project, self.head = nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), self.project(x)], dim=1) + self.positions
        return self.head(torch.tanh(x))


class FunctionalLinear(nn.Module):
    """The weights of a linear layer that never runs itself; ``also``: that runs once besides."""

    def __init__(self, also: bool = False) -> None:
        super().__init__()
        self.fc, self.also = nn.Linear(5, 5), also

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(F.linear(x, self.fc.weight, self.fc.bias))
        return self.fc(x) if self.also else x


class BiasedAttention(nn.Module):
    """Attention with a table of relative positions, added to the scores by hand or inside the kernel."""

    def __init__(self, fused: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 18), nn.Linear(6, 3)
        self.table = nn.Parameter(torch.randn(2 * 4 - 1, 2))
        steps = torch.arange(4)
        self.register_buffer("index", steps[:, None] - steps[None] + 3)
        self.fused, self.dropout = fused, dropout

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index].permute(2, 0, 1).unsqueeze(0)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=self.dropout)
        else:
            scores = torch.softmax(q @ k.transpose(-1, -2) + bias, dim=-1)
            mixed = F.dropout(scores, self.dropout) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class Language(nn.Module):
    """A small tied language model with positions of its own; tokens mix by recurrence or by a running sum."""

    def __init__(self, recurrent: bool = False) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(7, 6), nn.LayerNorm(6)
        self.positions = nn.Parameter(torch.randn(8, 6))
        self.mix = nn.GRU(6, 6, batch_first=True) if recurrent else nn.Linear(6, 6)
        self.head, self.recurrent = nn.Linear(6, 7, bias=False), recurrent
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.positions[: ids.shape[1]]
        mixed = self.mix(x)[0] if self.recurrent else self.mix(x.cumsum(dim=1))
        return self.head(self.norm(x + mixed))


class WholeState(nn.Module):
    """A recurrent layer of which only the last state is used: (layers · directions, B, h), whatever ``batch_first``."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(5, 4, num_layers=2, batch_first=batch_first, bidirectional=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        _, (h, c) = self.rnn(x if self.rnn.batch_first else x.transpose(0, 1))
        return self.head(torch.cat([h, c]).transpose(0, 1))


class Unrolled(nn.Module):
    """One cell called once a step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        state, seen = None, []
        for step in x.unbind(dim=1):
            state = self.cell(step, state)
            seen.append(state[0])
        return torch.stack(seen, dim=1)


class TimeFirst(nn.Module):
    """Batch first outside, time first within."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.into(x.transpose(0, 1)))).transpose(0, 1)


class Merged(nn.Module):
    """Batch and time in one axis on the way, batch-major or time-major."""

    def __init__(self, time_major: bool) -> None:
        super().__init__()
        self.into, self.norm, self.out, self.time_major = nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 3), time_major

    def forward(self, x: Tensor) -> Tensor:
        if self.time_major:
            x = x.transpose(0, 1)
        y = self.norm(torch.tanh(self.into(x.reshape(-1, 5))))
        y = self.out(y.reshape(*x.shape[:2], 6))
        return y.transpose(0, 1) if self.time_major else y


def transformer_layer(kind: type[nn.Module], batch_first: bool, dropout: float = 0.1, **more: Any) -> nn.Module:
    return kind(6, 2, dim_feedforward=8, dropout=dropout, batch_first=batch_first, **more)


def whole_transformer(batch_first: bool) -> nn.Module:
    return nn.Transformer(6, 2, 1, 1, dim_feedforward=8, dropout=0.1, batch_first=batch_first)


class Attends(nn.Module):
    """Multi-head attention to itself or to another sequence."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, **settings)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        other = x if y is None else y
        return self.attention(x, other, other)[0]


class LearnedQueries(nn.Module):
    """Queries of its own, the same for every example, that attend to the data."""

    def __init__(self, batch_first: bool, spread: Callable[[Tensor, int, int], Tensor]) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(4, 6))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=batch_first, dropout=0.1)
        self.axis, self.spread = (0 if batch_first else 1), spread

    def forward(self, x: Tensor) -> Tensor:
        queries = self.spread(self.queries.tanh(), self.axis, x.shape[self.axis])
        return self.attention(queries, x, x)[0]


def expanded(queries: Tensor, axis: int, size: int) -> Tensor:
    return queries.unsqueeze(axis).expand(*queries.shape[:axis], size, *queries.shape[axis:])


def repeated(queries: Tensor, axis: int, size: int) -> Tensor:
    return queries.unsqueeze(axis).repeat_interleave(size, dim=axis)


def recurrent(kind: type[nn.RNNBase], **settings: Any) -> Callable[[], nn.Module]:
    return lambda: kind(5, 4, **settings)
