"""Operators that move elements or number them, and compute nothing."""
