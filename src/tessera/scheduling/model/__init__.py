"""What machines can do, for cost models. What every cost model says is in `estimate.py`: seconds, terms by resource,
and what binds.
"""
