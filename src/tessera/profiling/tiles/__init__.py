"""Times of single tiles of kernels, for `graph.profile`."""
