"""`python -m concf`."""

from concf.cli.app import main

main()
