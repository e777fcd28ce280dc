"""The Gram matrix of a batch that several processes form together."""

from gradient_disclosure.gram.distributed.global_batch import GlobalBatch

__all__ = ["GlobalBatch"]
