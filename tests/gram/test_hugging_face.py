from __future__ import annotations

import pytest
import torch
from torch import nn

from gradient_disclosure.gram.hugging_face import conv1d_terms
from gradient_disclosure.gram.reference import per_example_gradients
from gradient_disclosure.gram.registry import call_terms_of

Conv1D = pytest.importorskip("transformers.pytorch_utils").Conv1D


@pytest.mark.parametrize("frozen", [None, "weight", "bias"])
@pytest.mark.parametrize("inner", [(), (5,), (2, 3)])
@pytest.mark.parametrize("batch", [0, 1, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_conv1d(dtype: torch.dtype, batch: int, inner: tuple[int, ...], frozen: str | None) -> None:
    torch.manual_seed(0)
    module = Conv1D(nf=3, nx=4).to(dtype)
    if frozen:
        getattr(module, frozen).requires_grad_(False)
    x = torch.randn(batch, *inner, 4, dtype=dtype)

    def loss(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (m(x) ** 3 * torch.tensor([1.0, -2.0, 0.5], dtype=dtype)).sum()

    output = module(x)
    e = (3 * output.detach() ** 2) * torch.tensor([1.0, -2.0, 0.5], dtype=dtype)
    terms = dict(conv1d_terms(module, x, e))
    assert list(terms) == [name for name in ("weight", "bias") if name != frozen]
    expected = per_example_gradients(module, lambda m, i: loss(m, x[i : i + 1]), batch).to(dtype)
    actual = torch.cat([terms[name].per_example() for name, p in module.named_parameters() if p.requires_grad], dim=1)
    relative = 1e-10 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(actual, expected, rtol=relative, atol=relative)
    gram = sum(term.gram() for term in terms.values())
    torch.testing.assert_close(gram, expected.double() @ expected.double().T, rtol=relative, atol=relative)
    assert all(term.shape == module.get_parameter(name).shape for name, term in terms.items())


def test_conv1d_is_found_by_its_name() -> None:
    assert call_terms_of(Conv1D(3, 4)) is not None
