"""What everything stands on: processes, files, progress, provenance."""
