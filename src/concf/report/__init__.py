"""A run as one page: `gather` takes its figures, `page` shows them."""
