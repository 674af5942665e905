"""Reductions along axes, and the normalizations of rows."""
