"""Attacks: what an adversary gets out of a model or a gradient. Never imports the defenses or the callbacks."""
