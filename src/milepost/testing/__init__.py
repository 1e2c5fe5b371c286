"""What users' own tests need. The fixtures are there as soon as Milepost is installed; these are their types."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from milepost.testing.database import MilepostDB, SyncMilepostDB

__all__ = ["MilepostDB", "SyncMilepostDB"]


# Imported when first asked for: pytest loads the plugin beside it in projects that never use it, too.
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'milepost.testing' has no attribute {name!r}")
    from milepost.testing import database

    return getattr(database, name)


def __dir__() -> list[str]:
    return __all__
