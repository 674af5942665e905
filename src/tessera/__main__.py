"""`python -m tessera`: the same as the command `tessera`."""

from tessera.cli.main import main

if __name__ == "__main__":
    main()
