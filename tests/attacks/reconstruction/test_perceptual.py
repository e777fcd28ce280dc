from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.nn import functional as F
from torchvision.models import alexnet

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.reconstruction import PerceptualDistance, perceptual_weights

WEIGHTS = Path(__file__).resolve().parents[3] / "../shared/data/weights/lpips_alex/lpips_alex.safetensors"
needs_weights = pytest.mark.skipif(not WEIGHTS.is_file(), reason=f"LPIPS weights are not at {WEIGHTS}")


@pytest.fixture
def empty_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Torch hub's cache in an empty folder."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


@pytest.fixture(scope="module")
def distance() -> PerceptualDistance:
    loaded = PerceptualDistance.load(WEIGHTS)
    assert loaded is not None
    return loaded


def photographs() -> Tensor:
    """Two real photographs, (2, 3, 64, 64) in [-1, 1]."""
    images = torch.stack([torch.from_numpy(image.copy()) for image in load_sample_images().images])
    return F.interpolate(images.permute(0, 3, 1, 2) / 127.5 - 1, size=(64, 64), mode="area")


def lpips_by_hand(first: Tensor, second: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """LPIPS of Zhang et al. 2018 from its definition: weighted squared differences of unit feature vectors."""
    mean, std = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])
    maps = [(images - mean[:, None, None]) / std[:, None, None] for images in (first, second)]
    total = torch.zeros(len(first))
    convolutions = [(0, 4, 2), (3, 1, 2), (6, 1, 1), (8, 1, 1), (10, 1, 1)]  # layer, stride, padding
    for k, (layer, stride, padding) in enumerate(convolutions):
        if layer in (3, 6):
            maps = [F.max_pool2d(m, 3, 2) for m in maps]
        weight, bias = weights[f"features.{layer}.weight"], weights[f"features.{layer}.bias"]
        maps = [F.conv2d(m, weight, bias, stride=stride, padding=padding).relu() for m in maps]
        a, b = (m / m.norm(dim=1, keepdim=True) for m in maps)
        total += ((a - b).square() * weights[f"lin{k}.weight"]).sum(1).mean((1, 2))
    return total


@needs_weights
def test_distance_is_that_of_the_definition(distance: PerceptualDistance) -> None:
    first = photographs()
    second = first + 0.2 * torch.randn(first.shape, generator=torch.Generator().manual_seed(0))
    expected = lpips_by_hand(first, second, load_file(WEIGHTS))
    assert expected.min() > 0.01
    torch.testing.assert_close(distance(first, second), expected, rtol=1e-3, atol=1e-5)


@needs_weights
def test_distance_behaves_as_a_perceptual_one(distance: PerceptualDistance) -> None:
    images = photographs()
    assert distance(images, images).tolist() == [0.0, 0.0]
    blurred = F.avg_pool2d(images, 3, stride=1, padding=1)
    assert (distance(images, blurred) < distance(images, images.flip(0))).all()
    torch.testing.assert_close(distance(images, blurred), distance(blurred, images))


@needs_weights
def test_small_gray_images_are_enlarged(distance: PerceptualDistance) -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = 2 * torch.rand(2, 3, 1, 8, 8, generator=generator) - 1
    enlarged = [F.interpolate(x, size=(64, 64), mode="bilinear").repeat(1, 3, 1, 1) for x in (first, second)]
    torch.testing.assert_close(distance(first, second), distance(*enlarged))
    with pytest.raises(AttackInputError, match="1 or 3 channels, but theirs are 2"):
        distance(torch.zeros(1, 2, 8, 8), torch.zeros(1, 2, 8, 8))


@needs_weights
def test_the_files_linear_layers_are_those_of_the_package() -> None:
    stored = load_file(WEIGHTS)
    packaged = perceptual_weights._linear_layers({})
    for k in range(5):
        assert torch.equal(packaged[f"lin{k}.model.1.weight"], stored[f"lin{k}.weight"])
        assert torch.equal(packaged[f"lins.{k}.model.1.weight"], stored[f"lin{k}.weight"])


@needs_weights
def test_loading_draws_no_random_number_and_leaves_nothing_to_train() -> None:
    before = torch.get_rng_state()
    distance = PerceptualDistance.load(WEIGHTS)
    assert torch.equal(torch.get_rng_state(), before)
    assert distance is not None
    first = torch.zeros(1, 3, 64, 64, requires_grad=True)
    assert not distance(first, torch.zeros(1, 3, 64, 64)).requires_grad


def test_without_weights_there_is_no_distance_and_the_reason_is_logged(
    empty_hub: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = tmp_path / "nowhere.safetensors"
    assert PerceptualDistance.load(missing) is None
    assert PerceptualDistance.load(None) is None
    assert len(caplog.records) == 2
    assert str(missing) in caplog.text
    assert str(tmp_path) in caplog.text


def test_an_alexnet_in_torch_hubs_cache_is_used(empty_hub: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = alexnet(weights=None).state_dict()  # stands for the checkpoint: the code must use what is there
    torch.save(backbone, empty_hub / "alexnet-owt-7be5be79.pth")
    distance = PerceptualDistance.load()
    assert distance is not None
    linear = {f"lin{k}.weight": perceptual_weights._linear_layers({})[f"lin{k}.model.1.weight"] for k in range(5)}
    first = photographs()
    second = first.flip(0)
    torch.testing.assert_close(
        distance(first, second), lpips_by_hand(first, second, backbone | linear), rtol=1e-3, atol=1e-5
    )


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.safetensors"
    save_file({"features.0.weight": torch.zeros(64, 3, 11, 11)}, file)
    with pytest.raises(AttackInputError, match="not an AlexNet"):
        PerceptualDistance.load(file)
    wrong = {f"features.{n}.{kind}": torch.zeros(2) for n in (0, 3, 6, 8, 10) for kind in ("weight", "bias")}
    save_file(wrong, file)
    with pytest.raises(AttackInputError, match="do not fit its AlexNet"):
        PerceptualDistance.load(file)
