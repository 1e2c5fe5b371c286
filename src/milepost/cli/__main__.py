"""`python -m milepost.cli` is the command, too."""

import sys

from milepost.cli import main

sys.exit(main())
