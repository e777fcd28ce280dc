"""The files in conf/model, used as Hydra uses them."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from gradient_disclosure import models
from gradient_disclosure.data import DataSpec

FOLDER = Path(__file__).resolve().parents[2] / "conf" / "model"
NAMES = ["lenet", "mlp", "resnet18", "small_cnn"]


@pytest.mark.parametrize("name", NAMES)
def test_the_file_builds_the_network_of_its_name(name: str):
    config = OmegaConf.load(FOLDER / f"{name}.yaml")
    assert config.name == name
    spec = DataSpec(kind="image", shape=(1, 8, 8), num_classes=10)
    torch.manual_seed(0)
    built = instantiate(config.network)(spec)
    torch.manual_seed(0)
    settings = {key: value for key, value in config.network.items() if not key.startswith("_")}
    direct = getattr(models, name)(spec, **settings)
    assert str(built) == str(direct)
    for one, other in zip(built.parameters(), direct.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_of_the_network_is_in_its_file(name: str):
    settings = {key for key in OmegaConf.load(FOLDER / f"{name}.yaml").network if not key.startswith("_")}
    assert settings == set(inspect.signature(getattr(models, name)).parameters) - {"spec"}
