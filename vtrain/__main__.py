"""``python -m vtrain``: the command line."""

from vtrain.cli import main

if __name__ == "__main__":
    main()
