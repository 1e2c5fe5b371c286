"""Projects of users: folders with a program and tests, in which pytest runs as it would for them."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from testing.project import Project


@pytest.fixture(scope="session")
def milepost_url(embedded_url: str) -> str:
    """The tests that use the fixtures themselves do so on the server of all tests."""
    return embedded_url


@pytest.fixture
def project(pytester: pytest.Pytester) -> Iterator[Project]:
    """A project of its own, whose temporary files are its own too."""
    with TemporaryDirectory(prefix="mp-") as temporary:
        # A server that root starts runs as somebody else.
        os.chmod(temporary, 0o755)
        yield Project(pytester, Path(temporary))
