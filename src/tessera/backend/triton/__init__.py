"""The Triton backend for GPUs: Tile IR in, Triton source out."""

from tessera.backend.triton.backend import TritonBackend

__all__ = ["TritonBackend"]
