"""The command line.

Files of commands do without `from __future__ import annotations`: Typer would evaluate each annotation three times.
"""
