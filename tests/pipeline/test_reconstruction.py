from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gradient_disclosure.attacks.reconstruction.attack import Reconstruction
from gradient_disclosure.attacks.reconstruction.victim import gradient_of_batch
from gradient_disclosure.defenses.dp_sgd import DPSGD
from gradient_disclosure.defenses.undefended import Undefended
from gradient_disclosure.pipeline.reconstruction import (
    attacked_members,
    early_moment,
    observations,
    reconstruct,
    reconstruction_results,
)
from gradient_disclosure.pipeline.settings import MembershipSettings, ReconstructionSettings, RunSettings
from gradient_disclosure.training.fit import TrainedModel, Watch, train
from gradient_disclosure.training.recipe import target_members
from tests.training.recipes import recipe

MEMBERS = target_members(40, 0.5, seed=0)


@dataclass(frozen=True)
class Spy:
    """An attack that notes what it is given and returns mid-gray."""

    name: str = "dlg"
    seen: list[dict[str, Any]] = field(default_factory=list)

    def reconstruct(self, module: nn.Module, released: Any, **known: Any) -> Reconstruction:
        self.seen.append({"module": module, "released": released, **known})
        return Reconstruction(torch.full((1, 1, 4, 4), 0.5), torch.tensor([0]), 0.0, (0.0,), False)


def trained(defense: Any, tmp_path: Path) -> tuple[RunSettings, TrainedModel, Spy]:
    spy = Spy()
    settings = RunSettings(
        recipe(defense=defense),
        seed=4,
        membership=MembershipSettings(shadow_models=0),
        reconstruction=ReconstructionSettings(attacks=(spy,), examples=2),
    )
    target = train(settings.recipe, MEMBERS, 4, tmp_path, Watch(True, {"init": 0, **early_moment(settings)}))
    return settings, target, spy


def test_the_attacker_gets_the_release_the_model_and_public_facts_only(tmp_path: Path) -> None:
    settings, target, spy = trained(Undefended(), tmp_path)
    examples = attacked_members(MEMBERS, 2, seed=4)
    assert set(examples) <= set(MEMBERS.tolist())
    seen = observations(settings, target, examples)
    assert [o.moment for o in seen] == ["control", "init", "control", "init", "early", "early", "end", "end"]
    records = reconstruct(settings, seen, lambda: None)
    assert len(records) == 8
    assert len(spy.seen) == 6  # the undefended release at initialization IS the control and is attacked once
    for call in spy.seen:
        assert set(call) == {"module", "released", "shape", "num_classes", "value_range", "generator"}
    pool = settings.recipe.data.pool
    for call, observation in zip(spy.seen, [o for o in seen if o.moment != "init"], strict=True):
        i = observation.index
        expected = gradient_of_batch(call["module"], pool.inputs[[i]], pool.labels[[i]])
        assert all(torch.allclose(a, b) for a, b in zip(call["released"].gradients, expected, strict=True))
    weights = [next(o.model.parameters()) for o in (seen[0], seen[4], seen[6])]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    assert torch.equal(weights[2], next(target.module.network.parameters()))
    results = reconstruction_results(settings, records)
    assert results["attack/dlg/working"] is False  # mid-gray is no reconstruction
    assert results["attack/dlg/end/n_scored"] == 2
    assert results["attack/dlg/end/n_not_released"] == 0


def test_dp_sgd_releases_clipped_and_noisy_gradients(tmp_path: Path) -> None:
    settings, target, spy = trained(DPSGD(clip_norm=0.5, noise_multiplier=2.0), tmp_path)
    seen = observations(settings, target, attacked_members(MEMBERS, 2, seed=4))
    reconstruct(settings, seen, lambda: None)
    assert len(spy.seen) == 8
    released = [call["released"] for call in spy.seen if call["released"].noise_std > 0]
    assert len(released) == 6
    assert all((r.clip_norm, r.noise_std) == (0.5, 1.0) for r in released)
    flat = torch.cat([torch.cat([g.flatten() for g in r.gradients]) for r in released])
    assert float(flat.std()) == pytest.approx(1.0, rel=0.1)


def test_a_censored_example_is_not_released_and_never_scored(tmp_path: Path) -> None:
    """Epochs have 3 steps: "early" is the release of step 3, where an example censored at step 3 is gone already."""
    settings, target, _ = trained(Undefended(), tmp_path)
    assert target.ledger is not None
    whole, early, late = MEMBERS[:3].tolist()
    target.ledger.censor(torch.tensor([early]), step=3)
    target.ledger.censor(torch.tensor([late]), step=4)
    seen = observations(settings, target, [whole, early, late])
    hidden = {(o.moment, o.index) for o in seen if o.released is None}
    assert hidden == {("early", early), ("end", early), ("end", late)}
    records = reconstruct(settings, seen, lambda: None)
    results = reconstruction_results(settings, records)
    assert [results[f"attack/dlg/{moment}/n_not_released"] for moment in ("init", "early", "end")] == [0, 1, 2]
    assert [results[f"attack/dlg/{moment}/n_scored"] for moment in ("init", "early", "end")] == [3, 2, 1]
