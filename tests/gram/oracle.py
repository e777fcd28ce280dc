"""Per-example gradients of one run of the batch, by autograd alone: what the engine is compared with.

``shares`` are the parts ℓ_i of a batch loss Σ_i ℓ_i that belong to the examples. They come from ONE forward pass, so
the gradient of ℓ_i is that of example i under the very dropout masks of that pass: seeding before it, and again before
the observed pass, makes random modules comparable too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from gradient_disclosure import GradientGram
from gradient_disclosure.errors import DisclosureError

Context = Callable[[], AbstractContextManager[object]]
SEED = 7


@contextmanager
def seeded(seed: int = SEED) -> Iterator[None]:
    """Random numbers as after ``torch.manual_seed(seed)``; the state outside is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def share_gradients(module: nn.Module, shares: Tensor) -> list[list[Tensor]]:
    """Gradient of each share (B) over the trainable parameters, zeros where a parameter takes no part."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    rows = []
    for share in shares:
        gradients = torch.autograd.grad(share, parameters, retain_graph=True, allow_unused=True)
        rows.append(
            [torch.zeros_like(p) if g is None else g.detach() for p, g in zip(parameters, gradients, strict=True)]
        )
    return rows


def inner_products(rows: list[list[Tensor]]) -> Tensor:
    """(B, B) float64 inner products of gradients given parameter by parameter."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for column in zip(*rows, strict=True):
        flat = torch.stack([g.flatten() for g in column]).double()
        total += flat @ flat.T
    return total


def expected_gram(module: nn.Module, shares: Callable[[], Tensor], context: Context = nullcontext) -> Tensor:
    """Gram of the examples' own gradients, B times those of their shares of a mean-like loss."""
    with seeded(), context():
        parts = shares()
    return inner_products(share_gradients(module, parts)) * len(parts) ** 2


def observed_gram(
    module: nn.Module,
    loss: Callable[[], Tensor],
    context: Context = nullcontext,
    *,
    watched: nn.Module | None = None,
    time_first: Sequence[str] = (),
) -> Tensor:
    """Gram read off one ordinary step; ``watched`` is given to the context in place of ``module``."""
    module.zero_grad()
    with GradientGram(watched or module, loss_reduction="mean", time_first=time_first) as gram:
        with seeded(), context():
            value = loss()
        value.backward()
    assert gram.coverage == 1.0
    return gram.gram()


def assert_same_gram(observed: Tensor, expected: Tensor, relative: float) -> None:
    """Equal up to ``relative`` times the largest entry, and worth comparing."""
    scale = float(expected.abs().max())
    assert 0 < scale < float("inf")
    assert observed.dtype == torch.float64
    torch.testing.assert_close(observed.cpu(), expected, rtol=0, atol=relative * scale)


def assert_exact_or_refused(
    names: Sequence[str], observe: Callable[[], Tensor], expected: Tensor, relative: float
) -> None:
    """The right matrix, or an error of this project that names one of ``names``; never a wrong matrix."""
    try:
        observed = observe()
    except DisclosureError as error:
        refusal = str(error)
    else:
        assert_same_gram(observed, expected, relative)
        return
    assert any(name in refusal for name in names), f"refused, but without naming {names}: {refusal}"


def footprint(module: nn.Module) -> dict[str, object]:
    """Everything an observer could leave behind: hooks, attributes, classes, replaced functions, modes."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    found: dict[str, object] = {
        "modes": (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
        "saved-tensor hooks": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "functions": [getattr(torch.nn.functional, f) for f in ("linear", "embedding", "layer_norm")],
        "global hooks": [len(getattr(nn.modules.module, f"_global{kind}")) for kind in hooks],
    }
    for name, child in module.named_modules():
        counts = [list(getattr(child, kind)) for kind in hooks]
        found[f"module {name}"] = (type(child), sorted(vars(child)), counts, child.training)
    for name, p in module.named_parameters(remove_duplicate=False):
        after = getattr(p, "_post_accumulate_grad_hooks", None)
        found[f"parameter {name}"] = (type(p), sorted(vars(p)), id(p), len(p._backward_hooks or ()), len(after or ()))
    return found
