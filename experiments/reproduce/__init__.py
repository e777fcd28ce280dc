"""The papers' tables and figures, one command each; results are kept in ``experiments/results``."""
