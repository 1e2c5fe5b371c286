"""Mistakes that the fast tests find: a list of them, and what makes each in a copy of the project."""
