"""The layers that are known: one import each, which registers them."""

from gradient_disclosure.gram import (  # noqa: F401
    attention,
    convolution,
    embedding,
    hugging_face,
    linear,
    normalization,
    prelu,
    recurrent,
)
