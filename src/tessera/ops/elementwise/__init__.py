"""Elementwise operators: arithmetic, comparisons, logic, functions of one variable."""
