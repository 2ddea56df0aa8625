"""Embedding tables: replicated in every process, or sharded among them."""
