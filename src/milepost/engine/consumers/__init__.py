"""Consumers in this process: their registry, the dispatcher of each subscription, and the consumers and deliveries
that users hold."""
