"""What holds for each network on each image shape of the project's data sets."""

from __future__ import annotations

import pytest
import torch
from opacus import PrivacyEngine
from opacus.validators import ModuleValidator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradient_disclosure.data import DataSpec
from gradient_disclosure.models import lenet, mlp, resnet18, small_cnn

NETWORKS = {"mlp": mlp, "small_cnn": small_cnn, "lenet": lenet, "resnet18": resnet18}
SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32)]
every_network = pytest.mark.parametrize("name", NETWORKS)


def build(name: str, shape: tuple[int, ...] = (1, 8, 8), **settings: object) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[name](DataSpec(kind="image", shape=shape, num_classes=10), **settings)


@every_network
@pytest.mark.parametrize("shape", SHAPES)
def test_every_parameter_gets_a_gradient_on_every_shape(name: str, shape: tuple[int, ...]):
    network = build(name, shape)
    logits = network(torch.rand(3, *shape))
    assert logits.shape == (3, 10)
    nn.functional.cross_entropy(logits, torch.tensor([0, 5, 9])).backward()
    for parameter_name, parameter in network.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().max() > 0, parameter_name


@every_network
def test_an_empty_batch_gives_zero_gradients(name: str):
    network = build(name)
    nn.functional.cross_entropy(network(torch.rand(0, 1, 8, 8)), torch.zeros(0).long(), reduction="sum").backward()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in network.parameters())


@every_network
def test_an_example_does_not_see_the_rest_of_its_batch(name: str):
    network = build(name).double()
    images = torch.rand(4, 1, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(network(images)[:1], network(images[:1]))


@every_network
def test_nothing_is_in_place_and_the_input_is_left_alone(name: str):
    network = build(name)
    assert not [module for module in network.modules() if getattr(module, "inplace", False)]
    images = torch.rand(2, 1, 8, 8)
    before = images.clone()
    outputs: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for module_name, module in network.named_modules():
        module.register_forward_hook(lambda _, __, out, key=module_name: outputs.update({key: (out, out.clone())}))
    network(images)
    assert torch.equal(images, before)
    for module_name, (output, when_made) in outputs.items():
        assert torch.equal(output, when_made), module_name


@every_network
def test_opacus_accepts_it_and_its_per_example_gradients_add_up(name: str):
    network = build(name)
    assert ModuleValidator.validate(network, strict=True) == []
    images, labels = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
    nn.functional.cross_entropy(network(images), labels).backward()
    expected = [parameter.grad.clone() for parameter in network.parameters()]
    network.zero_grad()
    private, optimizer, _ = PrivacyEngine().make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(images, labels), batch_size=4),
        noise_multiplier=0.0,
        max_grad_norm=1e9,
        poisson_sampling=False,
    )
    nn.functional.cross_entropy(private(images), labels).backward()
    optimizer.pre_step()
    for parameter, plain in zip(private.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, plain, rtol=1e-3, atol=1e-5)


@every_network
def test_the_seed_decides_the_weights(name: str):
    first, again = build(name), build(name)
    for one, other in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["mlp", "small_cnn", "lenet"])
def test_the_activation_is_the_one_asked_for(name: str):
    kinds = {type(module) for module in build(name, activation="silu").modules()}
    assert nn.SiLU in kinds
    assert kinds.isdisjoint({nn.Tanh, nn.Sigmoid, nn.ReLU})
