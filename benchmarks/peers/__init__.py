"""Other libraries at the work that Milepost does, each a program that an environment of its own runs.

These modules know nothing of Milepost but `benchmarks.messages`, and nothing of each other: what one library
needs is not there for another to break on.
"""
