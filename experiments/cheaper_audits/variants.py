"""The audits that are compared: the full one, and those that pay less."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from gradient_disclosure.training.defense import AuditSettings

STRIDES = (2, 5, 10, 20)
FULL = "full"


@dataclass(frozen=True)
class Variant:
    """One audit.

    Attributes:
        name: for files and keys.
        label: for readers.
        every_n_steps: one step of so many is audited.
        layers: patterns of the parameters audited; None for all.
    """

    name: str
    label: str
    every_n_steps: int = 1
    layers: tuple[str, ...] | None = None

    def settings(self, settings: AuditSettings) -> AuditSettings:
        """The settings with this choice in them."""
        return replace(settings, every_n_steps=self.every_n_steps, layers=self.layers)


def variants(module: nn.Module) -> tuple[Variant, ...]:
    """The full audit first, then those of some steps, then those of some layers.

    Args:
        module: whose layers are chosen from.

    Example:
        >>> chosen = variants(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(2, 3)))
        >>> {v.name: v.layers for v in chosen if v.layers}["all_but_largest"]
        ('1.*', '2.*')
        >>> {v.name: v.layers for v in chosen if v.layers}["biases_and_norms"]
        ('0.bias', '1.bias', '2.bias')
    """
    sizes: dict[str, int] = {}
    for name, parameter in module.named_parameters():
        layer = name.rpartition(".")[0]
        sizes[layer] = sizes.get(layer, 0) + parameter.numel()
    largest, names = max(sizes, key=lambda layer: sizes[layer]), list(sizes)
    vectors = tuple(name for name, parameter in module.named_parameters() if parameter.dim() == 1)
    strides = (Variant(f"every_{n}_steps", f"every {n} steps", every_n_steps=n) for n in STRIDES)
    return (
        Variant(FULL, "full audit"),
        *strides,
        Variant("first_layer", "first layer", layers=(f"{names[0]}.*",)),
        Variant("last_layer", "last layer", layers=(f"{names[-1]}.*",)),
        Variant("biases_and_norms", "biases and norms", layers=vectors),
        Variant("all_but_largest", "all but the largest", layers=tuple(f"{n}.*" for n in names if n != largest)),
    )
