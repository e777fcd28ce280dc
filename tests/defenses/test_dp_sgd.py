from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, vmap

from gradient_disclosure.defenses.dp_sgd import DPSGD
from gradient_disclosure.errors import UnsupportedTrainingError
from gradient_disclosure.training.batches import PoissonBatches
from tests.defenses.dp_sgd_training import Module, Weights, fit, pool

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")


def test_plan_samples_by_poisson_at_the_accounted_rate() -> None:
    plan = DPSGD(1.0, noise_multiplier=1.0).plan(torch.arange(700), batch_size=64, seed=3)
    assert isinstance(plan, PoissonBatches)
    assert plan.sampling_rate == 1 / 11
    assert (plan.batch_size, plan.seed) == (64, 3)


def test_summary_is_that_of_the_training(tmp_path: Path) -> None:
    defense = DPSGD(1.0, noise_multiplier=1.0, accountant="rdp")
    callback, _ = fit(Module(), defense, tmp_path)
    summary = defense.summary([Weights(), callback])
    assert summary == callback.summary()
    assert all(type(value) in (int, float, str) for value in summary.values())
    with pytest.raises(UnsupportedTrainingError, match="no DPSGDCallback"):
        defense.summary([Weights()])


def test_release_is_the_gradient_of_the_training_step(tmp_path: Path) -> None:
    """Two ways to the same: Opacus's step in training, and the release rule on gradients by torch.func."""
    torch.manual_seed(0)
    module, weights = Module(), Weights()
    defense, members = DPSGD(1.0, noise_multiplier=0.0), torch.arange(20)
    start = {name: p.detach().clone() for name, p in module.net.named_parameters()}
    callback, _ = fit(module, defense, tmp_path, members=members, batch_size=10, callbacks=[weights], max_steps=1)

    index, data = defense.plan(members, 10, 0).batches(0)[0], pool()

    def loss(parameters: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(functional_call(module.net, parameters, x[None]), y[None])

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(start, data.inputs[index], data.labels[index])
    released = defense.release(list(gradients.values()), defense.summary([callback]), torch.Generator())
    flat = torch.cat([g.flatten() for g in released.gradients])
    # The step divides by the expected batch size, the release by that of the batch.
    torch.testing.assert_close(weights.updates()[0], -flat * len(index) / 10, rtol=1e-4, atol=1e-6)
