from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from gradient_disclosure.defenses.dp_sgd_accounting import solve_noise_multiplier
from gradient_disclosure.defenses.dp_sgd_settings import PrivacySettings, PrivacyTerms
from gradient_disclosure.errors import UnsupportedTrainingError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "exactly one of noise_multiplier and target_epsilon"),
        ({"noise_multiplier": 1.0, "target_epsilon": 8.0}, "exactly one of noise_multiplier and target_epsilon"),
        ({"noise_multiplier": 1.0, "clip_norm": 0.0}, "clip_norm must be positive"),
        ({"noise_multiplier": 1.0, "clip_norm": math.inf}, "clip_norm must be positive and finite"),
        ({"noise_multiplier": -0.1}, "noise_multiplier must be 0 or more"),
        ({"noise_multiplier": math.nan}, "noise_multiplier must be 0 or more"),
        ({"target_epsilon": 0.0}, "epsilon must be positive"),
        ({"target_epsilon": 8.0, "accountant": "gdp"}, "'prv' or 'rdp', not 'gdp'"),
    ],
)
def test_values_out_of_range(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedTrainingError, match=message):
        PrivacySettings(**{"clip_norm": 1.0, **values})


@pytest.mark.parametrize("delta", [0.0, 0.01, 0.5])
def test_delta_of_one_over_n_or_more(delta: float) -> None:
    settings = PrivacySettings(1.0, noise_multiplier=1.0, delta=delta)
    with pytest.raises(UnsupportedTrainingError, match=r"1/n = 0\.01 for n = 100 members"):
        settings.terms(members=100, sampling_rate=0.1, steps=10)


def test_terms_of_given_noise() -> None:
    terms = PrivacySettings(2.0, noise_multiplier=1.5).terms(members=100, sampling_rate=0.1, steps=None)
    assert terms == PrivacyTerms(2.0, 1.5, 0.001, 0.1, "prv", target_epsilon=None, planned_steps=None)


def test_terms_of_a_budget() -> None:
    settings = PrivacySettings(2.0, target_epsilon=5.0, delta=1e-4, accountant="rdp")
    terms = settings.terms(members=100, sampling_rate=0.1, steps=30)
    assert terms.noise_multiplier == solve_noise_multiplier(5.0, 1e-4, 0.1, 30, "rdp")
    assert (terms.target_epsilon, terms.planned_steps, terms.delta) == (5.0, 30, 1e-4)
    assert "noise multiplier" in terms.describe()
    assert "epsilon 5, 30 steps" in terms.describe()
    with pytest.raises(UnsupportedTrainingError, match="set the trainer's max_epochs or max_steps"):
        settings.terms(members=100, sampling_rate=0.1, steps=None)


def test_saved_terms_are_kept_if_asked_for_again() -> None:
    settings = PrivacySettings(2.0, target_epsilon=5.0, delta=1e-4, accountant="rdp")
    saved = PrivacyTerms(2.0, 3.25, 1e-4, 0.1, "rdp", target_epsilon=5.0, planned_steps=30)  # noise of another solver
    assert settings.terms(members=100, sampling_rate=0.1, steps=30, saved=saved) is saved


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("clip_norm", 3.0),
        ("noise_multiplier", 1.0),
        ("delta", 1e-5),
        ("sampling_rate", 0.2),
        ("accountant", "prv"),
        ("target_epsilon", 5.0),
    ],
)
def test_saved_terms_that_differ(field: str, value: Any) -> None:
    settings = PrivacySettings(2.0, noise_multiplier=1.5, delta=1e-4, accountant="rdp")
    saved = settings.terms(members=100, sampling_rate=0.1, steps=30)
    with pytest.raises(UnsupportedTrainingError, match=rf"other privacy settings \({field} {value} -> "):
        settings.terms(members=100, sampling_rate=0.1, steps=30, saved=dataclasses.replace(saved, **{field: value}))
