"""Routing: which consumer gets a message."""
