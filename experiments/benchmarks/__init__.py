"""What the audit costs, against a plain training step and against other ways to the same Gram matrix."""
