"""Ways to train that are meant to disclose less."""
