"""Ways to build and call an ``nn.MultiheadAttention``: inputs, parameters, masks, outputs used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

WIDTH, HEADS, QUERIES, KEYS = 8, 2, 4, 5


@dataclass(frozen=True)
class Argument:
    """An argument of a call; along ``axis`` each example has ``rows`` rows (None: the same for all examples)."""

    value: Any
    axis: int | None = None
    rows: int = 1

    def of_example(self, i: int) -> Any:
        return self.value if self.axis is None else self.value.narrow(self.axis, i * self.rows, self.rows)


Arguments = dict[str, Argument]
Maker = Callable[[int, int], Argument]
"""(batch size, keys) → a mask"""


@dataclass(frozen=True)
class Case:
    """How a module is built and called, and which of its outputs the loss uses."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    inputs: str = "self"
    masks: dict[str, Maker] = field(default_factory=dict)
    call: dict[str, Any] = field(default_factory=dict)
    used: tuple[int, ...] = (0,)


def sequences(case: Case, batch: int, batch_first: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value: the same object where the case says so."""

    def draw(length: int, width: int) -> Tensor:
        return torch.randn((batch, length, width) if batch_first else (length, batch, width), dtype=torch.float64)

    x, y = draw(QUERIES, WIDTH), draw(QUERIES, WIDTH)
    key = draw(KEYS, case.options.get("kdim", WIDTH))
    return {
        "self": (x, x, x),
        "memory": (x, key, key),
        "distinct": (x, key, draw(KEYS, case.options.get("vdim", WIDTH))),
        "value apart": (x, x, y),
        "key apart": (x, y, x),
    }[case.inputs]


def arguments_of(case: Case, batch: int, batch_first: bool) -> Arguments:
    axis = 0 if batch_first else 1
    tensors = sequences(case, batch, batch_first)
    keys = tensors[1].shape[1 - axis]
    arguments = {name: Argument(x, axis) for name, x in zip(("query", "key", "value"), tensors, strict=True)}
    arguments |= {name: make(batch, keys) for name, make in case.masks.items()}
    return arguments | {name: Argument(value) for name, value in case.call.items()}


def padding(batch: int, keys: int) -> Argument:
    return Argument(torch.arange(keys) >= 2 + torch.arange(batch)[:, None], 0)


def float_padding(batch: int, keys: int) -> Argument:
    return Argument(torch.randn(batch, keys, dtype=torch.float64), 0)


def causal(batch: int, keys: int) -> Argument:
    return Argument(torch.ones(QUERIES, keys, dtype=torch.bool).triu(1))


def float_mask(batch: int, keys: int) -> Argument:
    return Argument(torch.randn(QUERIES, keys, dtype=torch.float64))


def mask_by_head(batch: int, keys: int) -> Argument:
    mask = torch.rand(batch * HEADS, QUERIES, keys) < 0.4
    mask[:, :, 0] = False
    return Argument(mask, 0, HEADS)


def float_mask_by_head(batch: int, keys: int) -> Argument:
    return Argument(torch.randn(batch * HEADS, QUERIES, keys, dtype=torch.float64), 0, HEADS)


EXTRA_KEYS = {"add_bias_kv": True, "add_zero_attn": True}
SEPARATE = {"kdim": 3, "vdim": 6}


def cases_of_way(need_weights: bool) -> Iterator[Case]:
    """Inputs, parameters and masks, through one of torch's two ways of computing attention."""
    way, end = {"need_weights": need_weights}, f", need_weights={need_weights}"
    for kind in ("self", "memory", "distinct", "value apart", "key apart"):
        yield Case(kind + end, inputs=kind, call=way)
    yield Case("no bias" + end, {"bias": False}, "memory", call=way)
    yield Case("separate weights" + end, SEPARATE, "distinct", call=way)
    yield Case("bias_k and bias_v" + end, {"add_bias_kv": True}, "memory", call=way)
    yield Case("zero key" + end, {"add_zero_attn": True}, call=way)
    both_masks: dict[str, Maker] = {"attn_mask": float_mask_by_head, "key_padding_mask": float_padding}
    yield Case("everything" + end, SEPARATE | EXTRA_KEYS, "distinct", both_masks, way)
    for mask in (causal, float_mask, mask_by_head, float_mask_by_head):
        yield Case(mask.__name__ + end, masks={"attn_mask": mask}, call=way)
        for pad in (padding, float_padding):
            name = f"{mask.__name__}, {pad.__name__}, extra keys{end}"
            yield Case(name, EXTRA_KEYS, "self", {"attn_mask": mask, "key_padding_mask": pad}, way)
    yield Case("padding" + end, inputs="memory", masks={"key_padding_mask": padding}, call=way)
    hint = way | {"is_causal": True}
    yield Case("hint" + end, masks={"attn_mask": causal}, call=hint)
    yield Case("wrong hint" + end, masks={"attn_mask": float_mask}, call=hint)
    yield Case("hint, extra keys" + end, EXTRA_KEYS, masks={"attn_mask": causal}, call=hint)
    yield Case("hint, padding" + end, masks={"attn_mask": causal, "key_padding_mask": padding}, call=hint)


CASES = (
    *cases_of_way(False),
    *cases_of_way(True),
    *(
        Case(f"loss on {used}, average={average}, {options}", options, "distinct", {}, call, used)
        for average in (True, False)
        for call in ({"average_attn_weights": average},)
        for used in ((1,), (0, 1))
        for options in (EXTRA_KEYS, SEPARATE | {"bias": False})
    ),
)
