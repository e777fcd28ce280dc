from __future__ import annotations

import pytest
import torch

from gradient_disclosure.data import DataSpec
from gradient_disclosure.errors import IncompatibleModelError
from gradient_disclosure.models import lenet, resnet18, small_cnn
from gradient_disclosure.models.networks.compatibility import SMALLEST_SIDE, halved, require_images

NETWORKS = {"small_cnn": small_cnn, "lenet": lenet, "resnet18": resnet18}


def test_every_network_for_images_has_a_smallest_side():
    assert set(SMALLEST_SIDE) == set(NETWORKS)


@pytest.mark.parametrize("name", NETWORKS)
def test_tabular_data_are_refused(name: str):
    with pytest.raises(IncompatibleModelError, match=rf"model {name} needs images .* tabular .*\(108,\).* fit: mlp\."):
        NETWORKS[name](DataSpec(kind="tabular", shape=(108,), num_classes=2))


@pytest.mark.parametrize("name", NETWORKS)
def test_images_below_the_smallest_side_are_refused(name: str):
    smallest = SMALLEST_SIDE[name]
    with pytest.raises(IncompatibleModelError, match=rf"model {name} needs .* {smallest}x{smallest} pixels"):
        NETWORKS[name](DataSpec(kind="image", shape=(1, 32, smallest - 1), num_classes=10))
    network = NETWORKS[name](DataSpec(kind="image", shape=(1, smallest, smallest), num_classes=10))
    assert network(torch.rand(2, 1, smallest, smallest)).shape == (2, 10)


def test_the_message_names_only_models_that_fit():
    with pytest.raises(IncompatibleModelError, match=r"Models that fit: mlp, small_cnn\.$"):
        require_images(DataSpec(kind="image", shape=(1, 6, 6), num_classes=10), "lenet")


@pytest.mark.parametrize("kernel", [3, 5, 7])
def test_halved_is_the_side_that_convolutions_give(kernel: int):
    convolution = torch.nn.Conv2d(1, 1, kernel, stride=2, padding=kernel // 2)
    for side in range(4, 40):
        once = convolution(torch.zeros(1, 1, side, side))
        assert (halved(side, 1), halved(side, 2)) == (once.shape[-1], convolution(once).shape[-1])
