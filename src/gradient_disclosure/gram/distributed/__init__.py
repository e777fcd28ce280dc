"""The Gram matrix of a batch that is spread over several processes."""
