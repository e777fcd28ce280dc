"""How well audits of some steps or some layers rank the examples, and what they cost: ``python -m`` this package."""
