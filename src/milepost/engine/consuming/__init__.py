"""Subscriptions for consumers: created with their settings, taken from and settled one delivery at a time."""
