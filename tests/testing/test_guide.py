"""The files of the guide are a project whose tests pass."""

import re
from pathlib import Path

import pytest

from testing.project import Project

pytest_plugins = "pytester"

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "testing.md"
FILE = re.compile(r"^```py\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.shard("processes")
def test_the_project_of_the_guide(project: Project, embedded_url: str) -> None:
    text = GUIDE.read_text()
    files = FILE.findall(text)
    assert len(files) == text.count("```py\n")
    for name, content in files:
        project.write(name, content)
    project.pytest_here(
        "-W", "error", "-p", "no:asyncio", "-p", "no:anyio", DATABASE_FOR_TESTS=embedded_url
    ).passed(7)
