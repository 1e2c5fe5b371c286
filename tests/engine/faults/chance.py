"""Random numbers that can be had again."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def seeded() -> Iterator[random.Random]:
    """Chance from a new seed, or from `MILEPOST_TEST_SEED`; what fails in the block says which."""
    seed = int(os.environ.get("MILEPOST_TEST_SEED") or random.SystemRandom().randrange(10**9))
    try:
        yield random.Random(seed)
    except BaseException as error:
        error.add_note(f"seed {seed}: MILEPOST_TEST_SEED={seed} has it again")
        raise
