from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradient_disclosure.models.predict import predict_logits
from gradient_disclosure.training import cohort
from gradient_disclosure.training.batches import derived_seed
from gradient_disclosure.training.cohort import train_cohort
from gradient_disclosure.training.fit import train
from tests.training.recipes import recipe


def test_shadows_are_trained_like_the_target(tmp_path: Path) -> None:
    wanted = recipe()
    shadows = train_cohort(wanted, 4, 9, tmp_path / "cohort")
    assert shadows.logits.shape == (4, 40, 3)
    members = shadows.membership[2].nonzero().squeeze(1)
    alone = train(wanted, members, derived_seed("shadow", 9, 2), tmp_path / "alone")
    assert torch.equal(shadows.logits[2], predict_logits(alone.module, wanted.data.pool.inputs))


def test_an_interrupted_cohort_repeats_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = train_cohort(recipe(), 4, 9, tmp_path / "straight")
    calls = []

    def counted(*args: object, **options: object) -> object:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return train(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(cohort, "train", counted)
    with pytest.raises(KeyboardInterrupt):
        train_cohort(recipe(), 4, 9, tmp_path / "broken")
    done = []
    resumed = train_cohort(recipe(), 4, 9, tmp_path / "broken", lambda: done.append(1))
    assert len(calls) == 5  # 2 finished, 1 interrupted, 2 left
    assert len(done) == 4
    assert torch.equal(resumed.logits, straight.logits)
    assert torch.equal(resumed.membership, straight.membership)
