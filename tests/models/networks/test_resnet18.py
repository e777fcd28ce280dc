from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torchvision.models import resnet18 as torchvision_resnet18

from gradient_disclosure.data import DataSpec
from gradient_disclosure.models import resnet18


def torchvision_twin(network: nn.Module, spec: DataSpec, groups: int) -> nn.Module:
    """torchvision's own ResNet-18, in-place operations and all, with the stem of ours and the same weights."""
    twin = torchvision_resnet18(num_classes=spec.num_classes, norm_layer=partial(nn.GroupNorm, groups))
    if spec.shape[1] < 64:
        twin.conv1 = nn.Conv2d(spec.shape[0], 64, 3, stride=1, padding=1, bias=False)
        twin.maxpool = nn.Identity()
    twin.load_state_dict(network.state_dict())
    return twin.double()


@pytest.mark.parametrize(("shape", "groups"), [((3, 64, 64), 32), ((3, 32, 32), 16), ((1, 8, 8), 32)])
def test_outputs_and_gradients_are_those_of_torchvision(shape: tuple[int, ...], groups: int):
    spec = DataSpec(kind="image", shape=shape, num_classes=10)
    network = resnet18(spec, groups=groups).double()
    twin = torchvision_twin(network, spec, groups)
    images, labels = torch.rand(2, *shape, dtype=torch.float64), torch.tensor([1, 2])
    for model in (network, twin):
        nn.functional.cross_entropy(model(images), labels).backward()
    torch.testing.assert_close(network(images), twin(images))
    for ours, theirs in zip(network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_the_stem_is_initialized_as_the_other_convolutions():
    torch.manual_seed(0)
    stem = resnet18(DataSpec(kind="image", shape=(3, 32, 32), num_classes=10)).conv1
    # Kaiming with fan-out: standard deviation sqrt(2 / (64 * 3 * 3)) = 0.0589, its standard error 0.0010 here.
    assert abs(stem.weight.std().item() - (2 / 576) ** 0.5) < 0.004


def test_it_has_group_norm_only():
    network = resnet18(DataSpec(kind="image", shape=(3, 32, 32), num_classes=10))
    norms = [module for module in network.modules() if "Norm" in type(module).__name__]
    assert len(norms) == 20
    assert all(isinstance(norm, nn.GroupNorm) and norm.num_groups == 32 for norm in norms)


@pytest.mark.parametrize("groups", [0, 3, 128])
def test_groups_that_do_not_divide_the_channels_are_refused(groups: int):
    with pytest.raises(ValueError, match=f"groups={groups} must divide 64"):
        resnet18(DataSpec(kind="image", shape=(3, 32, 32), num_classes=10), groups=groups)
