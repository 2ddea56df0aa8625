"""Report of a run as one page: `gather` collects its content, `page` renders it."""
