"""What traces are written as, a file or a folder each, with a constant `FORMAT`; see `export/contract.py`."""
