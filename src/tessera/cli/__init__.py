"""The command line: `main.py` finds the commands, each command is a module of its own name."""
