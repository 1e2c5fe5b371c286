"""Run the command as `python -m milepost.cli`."""

import sys

from milepost.cli import main

sys.exit(main())
