"""Run the program as ``python -m polyshot``."""

from polyshot.cli import main

main()
