"""What native code records: the ring buffer of kernels, and the thread that empties it."""
