"""Collectives: what the devices along an axis of a mesh compute together, and where a result is to lie."""
