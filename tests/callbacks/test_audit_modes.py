"""Mode "reuse" through the callback: the same training and the same scores but for rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradient_disclosure import GradientUniqueness
from gradient_disclosure.defenses.budget import AbsoluteThreshold
from gradient_disclosure.defenses.gnq_censor import CensorRule, GnqCensor
from tests.toy import ToyModule, fit, loader


def trained(mode: str, censor: GnqCensor | None = None) -> tuple[list[Tensor], GradientUniqueness]:
    torch.manual_seed(3)
    module = ToyModule()
    audit = GradientUniqueness(example_ids=lambda batch: batch[2], mode=mode, censor=censor)  # type: ignore[arg-type]
    fit(module, loader(shuffle=True), audit, epochs=3)
    return [p.detach().clone() for p in module.parameters()], audit


def test_the_same_training_and_ledger() -> None:
    (plain, untouched), (reused, audit) = trained("untouched"), trained("reuse")
    for p, q in zip(plain, reused, strict=True):
        torch.testing.assert_close(q, p, rtol=1e-5, atol=1e-6)
    expected, found = untouched.ledger.to_frame(), audit.ledger.to_frame()
    assert found["n_drawn"].tolist() == expected["n_drawn"].tolist()
    assert found["gnq_total"].tolist() == pytest.approx(expected["gnq_total"].tolist(), rel=1e-3)
    assert audit.coverage == 1.0


def test_a_censor_drops_the_same_examples() -> None:
    grams = []
    for mode in ("untouched", "reuse"):
        censor = GnqCensor(CensorRule(threshold=AbsoluteThreshold(5.0), max_fraction=1.0))
        weights, audit = trained(mode, censor)
        frame = audit.ledger.to_frame()
        assert frame["censored_at_step"].notna().any()
        grams.append((weights, frame["censored_at_step"].tolist()))
    assert str(grams[0][1]) == str(grams[1][1])
    for p, q in zip(grams[0][0], grams[1][0], strict=True):
        torch.testing.assert_close(q, p, rtol=1e-4, atol=1e-5)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="mode must be one of"):
        trained("fast")
