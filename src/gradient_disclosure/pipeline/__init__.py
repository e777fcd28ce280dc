"""One run: train, audit, attack, report."""
