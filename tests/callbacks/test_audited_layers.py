from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradient_disclosure.callbacks.audited_layers import checked_layers, patterns_outside
from gradient_disclosure.errors import DisclosureError


def model() -> nn.Module:
    block = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    odd = nn.ParameterDict({"a*": nn.Parameter(block[0].weight.detach().clone()), "a[1]": nn.Parameter(block[0].bias)})
    return nn.ModuleDict(
        {"body": nn.Sequential(block, nn.Sequential(nn.Linear(2, 2))), "head": nn.Linear(2, 3), "p": odd}
    )


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(0, 9), min_size=1))
def test_the_patterns_match_what_is_left_and_nothing_else(chosen: set[int]) -> None:
    module = model()
    names = [name for name, _ in module.named_parameters()]
    kept = {names[i] for i in chosen if i < len(names)} or {names[0]}
    escaped = [name.replace("[", "[[]").replace("*", "[*]") for name in kept]
    outside = patterns_outside(module, escaped)
    assert {name for name in names if not any(fnmatchcase(name, pattern) for pattern in outside)} == kept


def test_a_module_without_audited_parameters_is_one_pattern() -> None:
    assert patterns_outside(model(), ["head.*"]) == ("body.*", "p.*")
    assert patterns_outside(model(), ["*"]) == ()


def test_patterns_are_checked() -> None:
    with pytest.raises(DisclosureError, match=r"layers=\['hed.\*'\] matches no parameter.*body\.0\.0\.weight"):
        patterns_outside(model(), ["head.*", "hed.*"])
    frozen = model()
    frozen["head"].requires_grad_(False)  # type: ignore[index]
    with pytest.raises(DisclosureError, match="frozen parameters only"):
        patterns_outside(frozen, ["head.*"])
    with pytest.raises(ValueError, match="give one of the two"):
        checked_layers(["head.*"], ["body.*"])
    with pytest.raises(ValueError, match="would audit nothing"):
        checked_layers([], ())
    with pytest.raises(ValueError, match=r"layers=\['head.\*'\]"):
        checked_layers("head.*", ())
