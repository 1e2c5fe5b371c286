"""The server: a `Milepost` over HTTP, for programs in any language.

`create_app(mp)` is an ASGI application; `milepost serve` runs it. Both need `pip install "milepost[server]"`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from milepost.server.app import Server, create_app
    from milepost.server.limits import Limits

__all__ = ["Limits", "Server", "create_app"]

MISSING = 'the server needs more packages: pip install "milepost[server]"'


# Imported when first asked for: tokens can be made where the server is not installed.
def __getattr__(name: str) -> Any:
    if name == "Limits":
        from milepost.server.limits import Limits

        return Limits
    if name in __all__:
        try:
            from milepost.server import app
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("milepost"):
                raise
            raise ImportError(MISSING) from error
        return getattr(app, name)
    raise AttributeError(f"module 'milepost.server' has no attribute {name!r}")
