"""A page that shows what a service serves."""
