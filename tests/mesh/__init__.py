"""Random graphs over random layouts and meshes, compared with one process: `python -m tests.mesh --cases 2000`."""
