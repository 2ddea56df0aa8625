"""Logs as lines of JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """Formats a record as a line of JSON; `extra={"fields": {...}}` adds fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "level": record.levelname.lower()}
        line |= {"logger": record.name, "message": record.getMessage(), **getattr(record, "fields", {})}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_as_json() -> None:
    """Write the logs and warnings of all libraries to standard error as lines of JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("concf").setLevel(logging.INFO)
    logging.captureWarnings(True)
