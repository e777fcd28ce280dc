"""The figures of a report: one function a figure, each returning a matplotlib ``Figure``, no global state."""
