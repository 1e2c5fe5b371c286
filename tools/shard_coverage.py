"""Compare what the fast tests cover of each package with what all tests cover.

    python tools/shard_coverage.py run fast        # measures, and keeps the result in .coverage-shards/fast
    python tools/shard_coverage.py run faults      # … the same for any other shard
    python tools/shard_coverage.py compare         # fast beside all that were measured

Branches are counted, also in processes that tests start, unless a signal kills them. Coverage's own SIGTERM
handler stays off: the command installs none where it finds one, and would end with another status. So does its
support of greenlets: with it the tracer itself hung now and then, always beneath a callback of a weak reference.

`compare` exits with 1 if the fast tests reach less than 0.95 of the branches that all measured shards reach in
some package.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT = ROOT / ".coverage-shards"
SHARE = 0.95
CONFIGURATION = f"""
[run]
branch = true
parallel = true
source = {ROOT / "src" / "milepost"}
concurrency = thread
patch = subprocess
disable_warnings = no-data-collected,module-not-measured,couldnt-parse
"""


def coverage(*words: str, data: Path, check: bool = True) -> None:
    """Run coverage's own command with a data file."""
    rc = KEPT / "coveragerc"
    rc.write_text(CONFIGURATION)
    environment = {**os.environ, "COVERAGE_FILE": str(data), "COVERAGE_RCFILE": str(rc)}
    subprocess.run([sys.executable, "-m", "coverage", *words], cwd=ROOT, env=environment, check=check)


def run(shard: str) -> None:
    """Run a shard, and keep what it covers."""
    folder = KEPT / shard
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    coverage("run", "-m", "pytest", "--shard", shard, "-q", data=folder / "part", check=False)
    coverage("combine", "--quiet", *map(str, folder.glob("part.*")), data=folder / "all")


def branches(data: Path) -> Counter[str]:
    """Return how many branches are covered in each package."""
    report = data.with_suffix(".json")
    coverage("json", "--quiet", "--ignore-errors", "-o", str(report), data=data)
    covered: Counter[str] = Counter()
    for name, file in json.loads(report.read_text())["files"].items():
        parts = Path(name).relative_to("src/milepost").parts
        covered[parts[0] if len(parts) > 1 else "milepost"] += file["summary"]["covered_branches"]
    return covered


def compare() -> int:
    """Print each package with its branches; return how many fall short."""
    together = KEPT / "together"
    parts = [str(path) for path in KEPT.glob("*/all")]
    coverage("combine", "--quiet", "--keep", *parts, data=together)
    fast, every = branches(KEPT / "fast" / "all"), branches(together)
    for package in sorted(every):
        share = fast[package] / every[package] if every[package] else 1.0
        sys.stdout.write(f"{package:12} {fast[package]:6} of {every[package]:6}  {share:.3f}\n")
    return sum(fast[package] < SHARE * every[package] for package in every)


def main() -> None:
    match sys.argv[1:]:
        case ["run", shard]:
            run(shard)
        case ["compare"]:
            raise SystemExit(bool(compare()))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
