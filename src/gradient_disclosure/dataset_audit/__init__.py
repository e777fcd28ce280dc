"""``scope="dataset"``: gradient uniqueness among ALL N examples at one fixed state of the weights, exactly."""

from gradient_disclosure.dataset_audit.audit import audit_dataset
from gradient_disclosure.dataset_audit.result import DatasetAudit
from gradient_disclosure.dataset_audit.settings import DatasetAuditSettings, classification_losses

__all__ = ["DatasetAudit", "DatasetAuditSettings", "audit_dataset", "classification_losses"]
