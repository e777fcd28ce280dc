"""Commands: run one experiment or a sweep, compare runs."""
