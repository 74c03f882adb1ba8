"""Asynchronous clients."""
