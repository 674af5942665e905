"""Tessera on a GPU against cuBLAS, torch.compile and torch's attention: ``python -m bench.gpu [SUITE ...]``."""
