"""``nn.RNN``, ``nn.LSTM`` and ``nn.GRU``: run again one example at a time."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from gradient_disclosure.errors import UnsupportedLayerError
from gradient_disclosure.gram.call import LayerCall
from gradient_disclosure.gram.registry import ParameterTerm, register_call_terms
from gradient_disclosure.gram.rerun import ModuleRun
from gradient_disclosure.gram.shared import tensors_of


@register_call_terms(nn.RNN, nn.LSTM, nn.GRU)
def recurrent_terms(call: LayerCall) -> Iterator[ParameterTerm]:
    """Terms of all weights, from inputs (B, T, n) or, without ``batch_first``, (T, B, n), and optional first states.

    Raises:
        UnsupportedLayerError: active dropout between the layers, a packed sequence, or an input without a batch axis.
    """
    module = call.module
    assert isinstance(module, nn.RNNBase)
    name = type(module).__name__
    if module.training and module.dropout > 0 and module.num_layers > 1:
        raise UnsupportedLayerError(
            f"nn.{name} with dropout={module.dropout} between its layers cannot be run again with the same random "
            "numbers: set its dropout to 0, or stack layers of one and put nn.Dropout between them."
        )
    given = dict(zip(("input", "hx"), call.args, strict=False)) | call.kwargs
    data = given["input"]
    if not isinstance(data, Tensor) or data.dim() != 3:
        raise UnsupportedLayerError(f"nn.{name} is audited on padded inputs with three axes, not on packed sequences.")
    axis = 0 if module.batch_first else 1
    states = {id(state) for state in tensors_of(given.get("hx"))}
    wanted = [(local, p) for local, p in module.named_parameters(remove_duplicate=False) if p.requires_grad]

    def axis_of(tensor: Tensor) -> int:
        return 1 if id(tensor) in states else axis

    axes = [axis] + [1] * (len(call.gradients) - 1)
    run = ModuleRun(module, call.args, call.kwargs, axis_of, [], axes, call.batch_size)
    for (local, _), (_, term) in zip(wanted, run.resolver(wanted)(call.gradients), strict=True):
        yield local, term
