"""What every data set is turned into: labelled tensors in memory, numbered once and for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True)
class DataSpec:
    """What a network must know of the data.

    Attributes:
        kind: "image" for inputs (C, H, W), "tabular" for inputs (F,).
        shape: shape of one input, without the batch axis.
        num_classes: number of labels.
    """

    kind: Literal["image", "tabular"]
    shape: tuple[int, ...]
    num_classes: int


@dataclass(frozen=True)
class Examples:
    """Labelled examples; the *index* of an example is its row here.

    Attributes:
        inputs: (N, *shape) float32.
        labels: (N,) int64.
    """

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return self.labels.shape[0]


@dataclass(frozen=True)
class DataBundle:
    """One data set, split into the pool that members are drawn from and a test set that never trains.

    Attributes:
        name: name of the data set, e.g. "digits".
        spec: kind, shape and number of classes.
        pool: candidates for membership (the universe of size N of the GNQ definition).
        test: held-out examples for utility only; never a member, never a non-member of an attack.
        value_range: smallest and largest value an input can take (images); None for tabular data.
        class_names: one name a label.
    """

    name: str
    spec: DataSpec
    pool: Examples
    test: Examples
    value_range: tuple[float, float] | None
    class_names: tuple[str, ...]
