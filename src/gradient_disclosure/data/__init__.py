"""Data sets as labelled tensors in memory: a pool that members are drawn from, and a test set that never trains."""

from gradient_disclosure.data.adult import load_adult
from gradient_disclosure.data.bundle import DataBundle, DataSpec, Examples
from gradient_disclosure.data.cifar10 import load_cifar10
from gradient_disclosure.data.digits import load_digits
from gradient_disclosure.data.mnist import load_mnist

__all__ = ["DataBundle", "DataSpec", "Examples", "load_adult", "load_cifar10", "load_digits", "load_mnist"]
