"""Improved deep leakage from gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradient_disclosure.attacks.reconstruction.dlg import DLG
from gradient_disclosure.attacks.reconstruction.labels import AnalyticLabel, LabelRecovery


@dataclass(frozen=True)
class IDLG(DLG):
    """Improved DLG (Zhao et al. 2020): DLG with the label read off the output layer's gradient; single examples only.

    Attributes:
        iterations: the most L-BFGS iterations of a restart.
        restarts: the most restarts.
        tolerance: relative squared gradient distance at which the attack stops.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from gradient_disclosure.attacks.reconstruction.released import ReleasedGradient
        >>> layer = nn.Linear(2, 3)
        >>> released = ReleasedGradient((torch.zeros(3, 2), torch.tensor([0.2, 0.4, -0.6])), batch_size=1)
        >>> IDLG().reconstruct(layer, released, shape=(2,), num_classes=3, value_range=None,
        ...                    generator=torch.Generator().manual_seed(0)).labels
        tensor([2])
    """

    name: ClassVar[str] = "idlg"

    def label_recovery(self, batch_size: int) -> LabelRecovery:
        """From the output layer's gradient."""
        return AnalyticLabel()
