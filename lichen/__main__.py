"""``python -P -m lichen`` is the ``lichen`` command, for where no script is installed."""

from lichen.cli import main

if __name__ == "__main__":
    main()
