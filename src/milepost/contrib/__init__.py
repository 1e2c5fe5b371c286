"""Milepost with other libraries. Each module needs its library, and says so if it is missing."""
