"""The command line: `main.py` and `prof.py` find the commands, each of which is a module of its own."""
