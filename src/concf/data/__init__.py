"""Logs: read, filtered, divided, written down."""
