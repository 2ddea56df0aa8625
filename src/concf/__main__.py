"""`python -m concf`."""

from concf.cli import main

main()
