"""Backends: Tile IR and a target in, loadable kernels out (docs/architecture.md, section 4)."""
