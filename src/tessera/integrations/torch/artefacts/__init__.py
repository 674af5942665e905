"""Compiled programs in one file: written where there is a compiler, run where there is none."""
