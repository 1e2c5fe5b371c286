"""Account for every test that an earlier commit had and this tree has no more.

    python tools/gone_tests.py COMMIT

Compare the names of the tests of COMMIT with those of the working tree. Each name that is gone has to stand in
`tests/gone.txt`: merged into another test (`old -> new`), or redundant, with the reason (`old : reason`). A line
may name one test, or a test with all its parameters, or end in `*` for all names that begin like it. Print what is
not accounted for, and exit with 1 if there is anything.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
GONE = ROOT / "tests" / "gone.txt"


def names_in(folder: Path) -> set[str]:
    """Return the names of all tests in a tree, whatever their shard."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "-p", "no:cacheprovider"]
    options = ["--shard", "all"] if (folder / "tests" / "shards.py").exists() else ["-m", ""]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    listed = subprocess.run(
        [*command, *options], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        raise SystemExit(f"the tests of {folder} cannot be collected:\n{listed.stdout}{listed.stderr}")
    return {line for line in listed.stdout.splitlines() if "::" in line}


def names_at(commit: str) -> set[str]:
    """Return the names of all tests of a commit."""
    with tempfile.TemporaryDirectory() as temporary:
        subprocess.run(["git", "worktree", "add", "-q", "--detach", temporary, commit], cwd=ROOT, check=True)
        try:
            return names_in(Path(temporary))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", temporary], cwd=ROOT, check=True)


def accounts(present: set[str]) -> dict[str, str]:
    """Return what is said of names that are gone; refuse a line whose new name does not exist."""
    found = {}
    bases = {name.partition("[")[0] for name in present}
    for number, line in enumerate(GONE.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        old, arrow, new = (part.strip() for part in line.partition(" -> "))
        if arrow and new not in present and new not in bases:
            raise SystemExit(f"{GONE.name}:{number}: there is no test {new}")
        if not arrow:
            old, _, new = (part.strip() for part in line.partition(" : "))
        if not new:
            raise SystemExit(f"{GONE.name}:{number}: neither `old -> new` nor `old : reason`: {line}")
        found[old] = new
    return found


def is_accounted(name: str, said: dict[str, str]) -> bool:
    """Return whether something is said of a name, of its test, or of all names like it."""
    likes = [old.removesuffix("*") for old in said if old.endswith("*")]
    return name in said or name.partition("[")[0] in said or any(name.startswith(like) for like in likes)


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    present = names_in(ROOT)
    said = accounts(present)
    gone = sorted(names_at(sys.argv[1]) - present)
    left = [name for name in gone if not is_accounted(name, said)]
    for name in left:
        sys.stdout.write(f"{name}\n")
    sys.stdout.write(
        f"{len(gone)} are gone, {len(gone) - len(left)} of them accounted for, {len(present)} are here\n"
    )
    raise SystemExit(bool(left))


if __name__ == "__main__":
    main()
