"""Products that run as several launches.

`split_k.py`: S products over views of K / S each, into a workspace in the accumulator's dtype; then a kernel that adds
the parts up in a fixed order and goes on with what follows the product.
"""
