"""`milepost demo`: a small shop, those who follow it, and a checkout that commits late."""

from milepost.cli.demo.command import demo

__all__ = ["demo"]
