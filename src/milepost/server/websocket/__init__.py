"""Consumers elsewhere: deliveries and settlements over a WebSocket."""
