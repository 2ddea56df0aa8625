"""Logs of any form, read."""
