from __future__ import annotations

import pytest
from hydra.errors import ConfigCompositionException, MissingConfigException
from hydra.utils import instantiate
from torch.optim import Optimizer

from experiments.settings import build, description, identity, is_used
from gradient_disclosure.data.bundle import DataSpec
from gradient_disclosure.errors import IncompatibleModelError, UnsupportedTrainingError
from gradient_disclosure.pipeline.folder import fingerprint
from tests.experiments.composing import composed, names

SPECS = {
    "digits": DataSpec("image", (1, 8, 8), 10),
    "mnist": DataSpec("image", (1, 28, 28), 10),
    "cifar10": DataSpec("image", (3, 32, 32), 10),
    "adult": DataSpec("tabular", (108,), 2),
}
DEFENSES = [None, *names("defense")]


def test_every_group_is_known_to_these_tests() -> None:
    assert set(names("data")) == set(SPECS)
    assert names("model") == ["lenet", "mlp", "resnet18", "small_cnn"]
    assert names("defense") == ["dp_sgd", "gnq_censor", "none", "random_censor"]


@pytest.mark.parametrize("data", SPECS)
@pytest.mark.parametrize("model", names("model"))
@pytest.mark.parametrize("defense", DEFENSES)
def test_every_combination_composes_or_is_refused_by_message(defense: str | None, model: str, data: str) -> None:
    config = composed(f"data={data}", f"model={model}", *([f"+defense={defense}"] if defense else []))
    assert description(config)["data"] == data
    if defense:
        assert build(config.defense).name == defense
    network = build(config.model.network)
    if data == "adult" and model != "mlp":
        with pytest.raises(IncompatibleModelError, match="mlp"):
            network(SPECS[data])
        return
    optimizer = build(config.training.optimizer)(network(SPECS[data]).parameters())
    assert isinstance(optimizer, Optimizer)


@pytest.mark.parametrize("group", ["attack", "logger", "preset"])
def test_the_other_groups_compose(group: str) -> None:
    for name in names(group):
        config = composed(f"{group}={name}")
        for attack in config.attack.reconstruction.attacks.values():
            assert instantiate(attack).name in ("dlg", "idlg", "inverting_gradients")


def test_an_ignored_epsilon_is_known_to_be_ignored() -> None:
    for defense, used in (("gnq_censor", False), ("random_censor", False), ("dp_sgd", True)):
        config = composed(f"+defense={defense}", "epsilon=4")
        assert is_used(config, "epsilon") is used
        assert description(config)["epsilon"] == (4 if used else None)
    assert not is_used(composed("epsilon=4"), "epsilon")


def test_runs_are_the_same_if_only_what_is_ignored_differs() -> None:
    def number(*overrides: str) -> str:
        return fingerprint(identity(composed(*overrides)))

    assert number("+defense=gnq_censor", "epsilon=1") == number("+defense=gnq_censor", "epsilon=8")
    assert number("+defense=dp_sgd", "epsilon=1") != number("+defense=dp_sgd", "epsilon=8")
    assert number("data.root=/elsewhere", "logger=none", "report.progress=false") == number()
    assert number("training.checkpoint_every_n_steps=7", "data.download=true") == number()
    changes = (
        "seed=1",
        "data.batch_size=32",
        "training.epochs=3",
        "model=mlp",
        "attack=membership_only",
        "audit.damping.value=1",
        "audit.scope=universe_proxy",
        "audit.inverse=pinv",
        "audit.every_n_steps=5",
        "audit.layers=[network.1.*]",
    )
    assert len({number(), *(number(change) for change in changes)}) == 1 + len(changes)
    assert number("+defense=gnq_censor") != number("+defense=random_censor") != number()
    assert number("+defense=none") == number()
    assert number("audit.inverse=pinv", "audit.damping.value=1") == number("audit.inverse=pinv")


def test_dp_sgd_takes_a_budget_or_a_noise() -> None:
    assert build(composed("+defense=dp_sgd").defense).noise_multiplier == 1.0
    budget = build(composed("+defense=dp_sgd", "epsilon=8").defense)
    assert (budget.target_epsilon, budget.noise_multiplier) == (8, None)
    with pytest.raises(UnsupportedTrainingError, match="noise_multiplier"):
        build(composed("+defense=dp_sgd", "epsilon=8", "defense.noise_multiplier=2.0").defense)


def test_typos_are_refused_with_the_right_names() -> None:
    with pytest.raises(ConfigCompositionException, match=r"trainign"):
        composed("trainign.epochs=3")
    with pytest.raises(MissingConfigException, match=r"gnq_censor"):
        composed("+defense=gnq_censr")
    with pytest.raises(ConfigCompositionException, match=r"\+defense"):
        composed("defense=gnq_censor")


def test_the_censor_takes_every_threshold() -> None:
    for name in names("defense/threshold"):
        config = composed("+defense=gnq_censor", f"defense/threshold@defense.rule.threshold={name}")
        threshold = build(config.defense).rule.threshold
        assert type(threshold).__name__.lower().startswith(name.replace("_", "")[:6])
    described = description(composed("+defense=gnq_censor", "defense.rule.threshold.multiple=7"))
    assert described["defense.rule.threshold.multiple"] == 7
    assert described["defense.rule.threshold"] == "MedianMultiple"
    assert "defense.target_epsilon" not in description(composed("+defense=dp_sgd", "epsilon=2"))  # is setting/epsilon
