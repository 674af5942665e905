"""Operators by theme. `tessera.op` gives all of them."""
