"""Reductions over windows of images: depthwise convolutions and pools, and the geometry of windows."""
