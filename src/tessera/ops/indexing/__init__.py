"""Operators that read or write at places which a tensor of indices names, and choices along an axis."""
