"""Rows of operators of images: convolutions, pools, and what reads between pixels."""

from tessera.integrations.torch.mapping.images import (  # noqa: F401 - each enters its rows
    convolution,
    pooling,
    resizing,
    sampling,
)
