"""Fourier transforms, and convolutions through them."""
