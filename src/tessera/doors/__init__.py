"""Operators by theme, beside those of `tessera.op`, which gives all of them."""
