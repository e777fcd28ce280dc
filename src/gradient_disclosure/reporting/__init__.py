"""From one finished run to its table, files, figures and HTML report; the only place that knows Weights & Biases."""
