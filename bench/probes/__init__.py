"""Programs that suites run in processes of their own, what they inject and make up, and searches run by hand."""
