"""The one training function and what it is made of."""
