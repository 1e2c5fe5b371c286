"""`milepost demo`: a small shop, its departments and couriers, a checkout that commits late, and the console."""

from milepost.cli.demo.command import demo

__all__ = ["demo"]
