"""Foundations of every program: processes, files, progress, provenance."""
