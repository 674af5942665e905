"""Benchmarks of Tessera against the libraries a user has today: ``python -m bench SUITE``.

Every contender runs in a worker process that was started with its own environment (threads, preloaded libraries,
allocator settings). The parent asks the contenders in turn (A B C A B C ...) to time one batch of calls, so that a
slow minute of the machine hits all of them, and reports medians.
"""
