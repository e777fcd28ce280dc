"""From a composed Hydra config to the settings of a run; the only place that knows both."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from gradient_disclosure import __version__
from gradient_disclosure.defenses.undefended import Undefended
from gradient_disclosure.pipeline.folder import flattened
from gradient_disclosure.pipeline.settings import MembershipSettings, ReconstructionSettings, RunSettings
from gradient_disclosure.training.defense import AuditSettings
from gradient_disclosure.training.recipe import TrainingRecipe

IGNORED_IN_IDENTITY = ("logger", "report", "fresh", "epsilon")
WITHOUT_INFLUENCE = {"data": ("root", "download"), "training": ("checkpoint_every_n_steps",)}


def run_settings(config: DictConfig) -> RunSettings:
    """Build everything a run needs.

    Args:
        config: composed from ``conf/``.

    Returns:
        The settings.

    Raises:
        DisclosureError: a combination that does not work, or data that are not there.
    """
    training, attack = config.training, config.attack
    recipe = TrainingRecipe(
        data=build(config.data.loader),
        network=build(config.model.network),
        optimizer=build(training.optimizer),
        defense=build(config.defense) if _is_defended(config) else Undefended(),
        audit=audit_settings(config),
        epochs=training.epochs,
        batch_size=training.batch_size,
        accelerator=training.accelerator,
        checkpoint_every_n_steps=training.checkpoint_every_n_steps,
    )
    attacks = attack.reconstruction.attacks if attack.reconstruction.enabled else {}
    weights = attack.reconstruction.lpips_weights
    reconstruction = ReconstructionSettings(
        attacks=tuple(build(each) for each in attacks.values() if each is not None),
        examples=attack.reconstruction.examples,
        early_epochs=attack.reconstruction.early_epochs,
        working_ssim=attack.reconstruction.working_ssim,
        lpips_weights=None if weights is None else Path(weights),
    )
    return RunSettings(
        recipe=recipe,
        seed=config.seed,
        membership=MembershipSettings(attack.membership.shadow_models, attack.membership.bootstrap),
        reconstruction=reconstruction,
        description=description(config),
    )


def audit_settings(config: DictConfig) -> AuditSettings:
    """How the in-run audit scores, and which steps and parameters it sees."""
    audit = config.audit
    return AuditSettings(
        build(audit.damping),
        audit.membership_prior,
        audit.scope,
        audit.inverse,
        every_n_steps=audit.every_n_steps,
        layers=_layers(config),
        mode=audit.mode,
    )


def _layers(config: DictConfig) -> tuple[str, ...] | None:
    layers = config.audit.layers
    if layers is None:
        return None
    return (layers,) if isinstance(layers, str) else tuple(layers)


def build(node: DictConfig) -> Any:
    """Instantiate a node; an error of the thing itself comes out as it is, not wrapped in Hydra's."""
    try:
        return instantiate(node)
    except InstantiationException as error:
        if error.__cause__ is None:
            raise
        raise error.__cause__ from None


def identity(config: DictConfig) -> dict[str, Any]:
    """The part of a config that decides a run's numbers, resolved.

    A top-level value that nothing interpolates (``epsilon`` without a defense that takes one) is not in it, so two jobs
    of a sweep that differ in it alone are the same run.
    """
    resolved: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    kept = {key: value for key, value in resolved.items() if key not in IGNORED_IN_IDENTITY}
    if not _is_defended(config):
        kept.pop("defense", None)  # +defense=none is the same run as no defense at all
    for group, keys in WITHOUT_INFLUENCE.items():
        kept[group] = {key: value for key, value in kept[group].items() if key not in keys}
    if not _uses_damping(config):
        kept["audit"].pop("damping")
    kept["version"] = __version__
    kept["data"]["loader"] = {k: v for k, v in kept["data"]["loader"].items() if k not in ("root", "download")}
    return kept


def is_used(config: DictConfig, name: str) -> bool:
    """Whether anything in the config interpolates a top-level value."""
    raw = OmegaConf.to_container(config, resolve=False)
    return any(re.search(r"\$\{" + re.escape(name) + r"\}", text) for text in _texts(raw))


def description(config: DictConfig) -> dict[str, Any]:
    """What the report says of the settings; a value that is ignored is None."""
    optimizer = config.training.optimizer
    return {
        "data": config.data.name,
        "model": config.model.name,
        "batch_size": config.training.batch_size,
        "epochs": config.training.epochs,
        "optimizer": optimizer._target_.rsplit(".", 1)[-1],
        "learning_rate": OmegaConf.select(optimizer, "lr"),
        "epsilon": config.epsilon if is_used(config, "epsilon") else None,
        "damping": config.audit.damping.value if _uses_damping(config) else None,
        "damping_kind": config.audit.damping.kind if _uses_damping(config) else None,
        "scope": config.audit.scope,
        "inverse": config.audit.inverse,
        "every_n_steps": config.audit.every_n_steps,
        "layers": "all" if (layers := _layers(config)) is None else " ".join(layers),
        "audit_mode": config.audit.mode,
        "membership_prior": config.audit.membership_prior,
        "shadow_models": config.attack.membership.shadow_models,
        "seed": config.seed,
        **_defense_settings(config),
    }


def _uses_damping(config: DictConfig) -> bool:
    """Whether the audit's damping has any influence: DP-SGD's real noise takes its place, a pseudo-inverse has none."""
    has_own_noise = str(OmegaConf.select(config, "defense._target_")).endswith(".DPSGD")
    return not has_own_noise and config.audit.inverse != "pinv"


def _is_defended(config: DictConfig) -> bool:
    target = OmegaConf.select(config, "defense._target_")
    return target is not None and not target.endswith(f".{Undefended.__name__}")


def _defense_settings(config: DictConfig) -> dict[str, Any]:
    """Every plain value of the defense's config, under its dotted path; a part that can be exchanged by its name."""
    if not _is_defended(config):
        return {}
    plain = flattened(OmegaConf.to_container(config.defense, resolve=True), "defense")
    named = {
        name.removesuffix("._target_"): str(value).rsplit(".", 1)[-1] if name.endswith("._target_") else value
        for name, value in plain.items()
    }
    return {name: value for name, value in named.items() if name not in ("defense", "defense.target_epsilon")}


def _texts(node: Any) -> list[str]:
    if isinstance(node, dict):
        return [text for value in node.values() for text in _texts(value)]
    if isinstance(node, list):
        return [text for value in node for text in _texts(value)]
    return [node] if isinstance(node, str) else []
