"""Traces: a profile as columns, made of recordings and read from files."""
