"""Networks as functions of a DataSpec, the LightningModule that trains them, and their predictions."""

from gradient_disclosure.models.classifier import ClassifierModule
from gradient_disclosure.models.networks.lenet import lenet
from gradient_disclosure.models.networks.mlp import mlp
from gradient_disclosure.models.networks.resnet18 import resnet18
from gradient_disclosure.models.networks.small_cnn import small_cnn
from gradient_disclosure.models.predict import predict_logits

__all__ = ["ClassifierModule", "lenet", "mlp", "predict_logits", "resnet18", "small_cnn"]
