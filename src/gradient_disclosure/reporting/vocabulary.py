"""Plain words for the names used in keys and configs; an unknown name is shown as it is."""

from __future__ import annotations

MEMBERSHIP_ATTACKS = {
    "lira_online": "LiRA online",
    "lira_offline": "LiRA offline",
    "loss_threshold": "Loss threshold",
}

RECONSTRUCTION_ATTACKS = {
    "dlg": "DLG",
    "idlg": "iDLG",
    "inverting_gradients": "Inverting Gradients",
}

MOMENTS_IN_WORDS = {
    "control": "Control: undefended, at initialization",
    "init": "Released at initialization",
    "early": "Released early in training",
    "end": "Released at the end of training",
}

DEFENSES = {
    "none": "no defense",
    "gnq_censor": "GNQ censor",
    "random_censor": "random censor (control)",
    "dp_sgd": "DP-SGD",
}

CENSORS = frozenset({"gnq_censor", "random_censor"})


def attack_in_words(name: str) -> str:
    """Plain name of an attack.

    Example:
        >>> attack_in_words("lira_online"), attack_in_words("new_attack")
        ('LiRA online', 'new_attack')
    """
    return (MEMBERSHIP_ATTACKS | RECONSTRUCTION_ATTACKS).get(name, name)


def defense_in_words(name: str | None) -> str:
    """Plain name of a defense; None, which no run should have, is said to be unknown.

    Example:
        >>> defense_in_words("dp_sgd"), defense_in_words(None)
        ('DP-SGD', 'unknown defense')
    """
    return "unknown defense" if name is None else DEFENSES.get(name, name)
