"""The files in conf/data, used as Hydra uses them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from gradient_disclosure.data import DataBundle
from gradient_disclosure.errors import MissingDataError

FILES = sorted((Path(__file__).resolve().parents[2] / "conf" / "data").glob("*.yaml"))


def test_every_data_set_has_a_file_of_its_name():
    assert {file.stem for file in FILES} >= {"adult", "cifar10", "digits", "mnist"}
    for file in FILES:
        assert OmegaConf.load(file).name == file.stem


@pytest.mark.parametrize("name", ["adult", "cifar10", "mnist"])
def test_the_root_reaches_the_loader(name: str, tmp_path: Path):
    config = OmegaConf.create({"data": OmegaConf.load(FILES[0].with_stem(name))})
    config.data.root = str(tmp_path / "here")
    with pytest.raises(InstantiationException, match=str(tmp_path / "here")) as caught:
        instantiate(config.data.loader)
    assert isinstance(caught.value.__cause__, MissingDataError)


def test_digits_load_from_the_file():
    bundle = instantiate(OmegaConf.create({"data": OmegaConf.load(FILES[0].with_stem("digits"))}).data.loader)
    assert isinstance(bundle, DataBundle)
    assert (len(bundle.pool), len(bundle.test)) == (1400, 397)
