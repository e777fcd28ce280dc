"""Compiled modules run uncompiled while they are observed: compiled code calls no hooks."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack

import torch
from torch import nn

logger = logging.getLogger(__name__)


def run_eagerly(module: nn.Module) -> ExitStack | None:
    """Switch compilation off, with a message, where something of ``module`` is compiled.

    Args:
        module: any module.

    Returns:
        What to close to switch it on again, None where torch's compiler has not been loaded at all.
    """
    if "torch._dynamo" not in sys.modules:
        return None
    if any(_is_compiled(child) for child in module.modules()):
        logger.warning(
            "the module is compiled: it runs uncompiled while its gradients are observed, because compiled code calls "
            "no hooks. The numbers are exact, the speed is that of the plain module."
        )
    stack = ExitStack()
    stack.enter_context(torch.compiler.set_stance("force_eager"))
    return stack


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
