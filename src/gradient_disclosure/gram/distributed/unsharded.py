"""Follows parameters that ``fully_shard`` swaps: sharded between passes, whole while their module runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from gradient_disclosure.errors import UnsupportedLayerError
from gradient_disclosure.gram.account import ParameterAccount
from gradient_disclosure.gram.kinds import TensorKinds


def sharded_modules(module: nn.Module) -> dict[str, nn.Module]:
    """Modules within ``module`` that ``fully_shard`` was applied to, by name.

    Raises:
        UnsupportedLayerError: something is wrapped in the older ``FullyShardedDataParallel``.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:  # nobody has imported it, so nothing is sharded
        return {}
    older = [name for name, child in module.named_modules() if isinstance(child, fsdp.FullyShardedDataParallel)]
    if older:
        raise UnsupportedLayerError(
            f"'{older[0]}' is wrapped in FullyShardedDataParallel, which joins parameters into flat ones that no layer "
            "owns. Use torch.distributed.fsdp.fully_shard instead."
        )
    return {name: child for name, child in module.named_modules() if isinstance(child, fsdp.FSDPModule)}


class UnshardedParameters:
    """Brings the whole parameters, once they are there, to the accounts of the sharded ones.

    ``fully_shard`` gathers a module's parameters before its forward pass, in tensors of their own, and again before the
    first gradient of its outputs is passed on. Its hooks run before those that adopt the parameters here; and because
    each output of a sharded module is passed on as a view of itself, it hears of an output's gradient first, so that
    the parameters are whole when layers are looked at again.

    Args:
        module: the module that is observed.
        accounts: accounts by ``id`` of the parameter; those of whole parameters are added.
        kinds: is told of them too.
    """

    def __init__(self, module: nn.Module, accounts: dict[int, ParameterAccount], kinds: TensorKinds) -> None:
        self._modules = sharded_modules(module)
        within = {id(p) for child in self._modules.values() for p in child.parameters()}
        lone = [name for name, p in module.named_parameters() if _is_distributed(p) and id(p) not in within]
        if lone:
            raise _refusal(lone)
        self._accounts = accounts
        self._kinds = kinds
        self._by_name = {
            name: accounts[id(parameter)]
            for name, parameter in module.named_parameters(remove_duplicate=False)
            if id(parameter) in accounts
        }
        self._sharded = {id(parameter) for parameter in module.parameters() if _is_distributed(parameter)}
        self._handles: list[Any] = []

    def __bool__(self) -> bool:
        """Whether anything is sharded."""
        return bool(self._modules)

    def attach(self) -> None:
        """Register the hooks; before those of the observer, which are to find whole parameters."""
        for name, module in self._modules.items():
            self._handles += [
                module.register_forward_pre_hook(self._adopter(name)),
                module.register_forward_hook(_pass_on_views, prepend=True),
            ]

    def detach(self) -> None:
        """Remove everything."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _adopter(self, name: str) -> Callable[..., None]:
        prefix = f"{name}." if name else ""

        def adopt(module: nn.Module, args: Any) -> None:
            with torch._C.DisableTorchFunction():
                for local, parameter in module.named_parameters():
                    self._adopt(prefix + local, parameter)

        return adopt

    def _adopt(self, name: str, parameter: nn.Parameter) -> None:
        if id(parameter) in self._sharded or id(parameter) in self._accounts:
            return  # of a module within, whose turn will come
        if _is_distributed(parameter):
            raise _refusal([name])
        account = self._by_name.get(name)
        if account is None:
            self._kinds.add_constant(parameter, trainable=True)
            return
        account.parameter = parameter
        self._accounts[id(parameter)] = account
        self._kinds.add_parameter(parameter)
        self._handles.append(parameter.register_hook(account.receive))


def _pass_on_views(module: nn.Module, args: Any, output: Any) -> Any:
    return tree_map_only(Tensor, lambda t: t.view_as(t) if t.requires_grad else t, output)


def _is_distributed(parameter: nn.Parameter) -> bool:
    tensor = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and isinstance(parameter, tensor.DTensor)


def _refusal(names: list[str]) -> UnsupportedLayerError:
    return UnsupportedLayerError(
        f"{', '.join(names)}: held in parts by several processes while their module runs (tensor parallelism, or "
        "reshard_after_forward=<number> in a module that runs twice). Only parameters that fully_shard gathers whole "
        "are followed."
    )
