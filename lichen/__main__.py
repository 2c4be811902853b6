"""``python -P -m lichen`` runs the ``lichen`` command where no script is installed."""

from lichen.cli import main

if __name__ == "__main__":
    main()
