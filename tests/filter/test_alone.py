"""The filter can be used without the rest: no driver, no event loop."""

import subprocess
import sys


def test_it_loads_nothing_of_the_rest() -> None:
    program = (
        "import sys\n"
        "from milepost.filter import compile_filter\n"
        "assert compile_filter('a == 1').matches({'a': 1})\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('psycopg', 'asyncio', 'msgspec')"
        " or name.startswith('milepost.log')])\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
