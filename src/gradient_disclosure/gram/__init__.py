"""Per-example gradient inner products of any module; needs torch only."""

from gradient_disclosure.gram.engine import GradientGram
from gradient_disclosure.gram.registry import register_call_terms, register_gram_terms
from gradient_disclosure.gram.terms import Dense, OuterProduct, Term

__all__ = ["Dense", "GradientGram", "OuterProduct", "Term", "register_gram_terms"]
