"""What traces are written as."""
