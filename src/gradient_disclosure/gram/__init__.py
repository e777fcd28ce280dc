"""Per-example gradient inner products of any module; needs torch only."""

from gradient_disclosure.gram.call import LayerCall
from gradient_disclosure.gram.coverage import CoverageReport
from gradient_disclosure.gram.engine import GradientGram
from gradient_disclosure.gram.registry import register_call_terms, register_gram_terms
from gradient_disclosure.gram.terms import Dense, Lookup, OuterProduct, Term

__all__ = [
    "CoverageReport",
    "Dense",
    "GradientGram",
    "LayerCall",
    "Lookup",
    "OuterProduct",
    "Term",
    "register_call_terms",
    "register_gram_terms",
]
