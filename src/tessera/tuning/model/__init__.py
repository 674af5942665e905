"""Cost models by name.

`registry.py` has them; `under(problem, name)` puts one in the place of `predict`. `ranking.py` orders a space by it,
and `outlook.py` says what rules and model leave to measure (docs/cost-model.md).
"""
