"""Several runs side by side: collecting their results, one table, one figure, one page."""
