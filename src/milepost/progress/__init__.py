"""Lanes, leases, cursors and deliveries: what a subscription has done, and who works on it."""
