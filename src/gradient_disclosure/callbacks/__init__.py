"""Lightning callbacks: the in-run audit and what a resumable run needs."""
