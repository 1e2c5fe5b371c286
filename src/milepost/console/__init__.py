"""The console: pages for people, at `/console` of a server.

`milepost serve` has it; an application that mounts the server gives `pages=Console` to `create_app`.

To add a page:

1. `pages/NAME.py` with its handlers in `HANDLERS`, and an `ENTRY` if it is to stand in the navigation. Each
   handler says which role it takes and how it keeps to the scope of a token: `opt=needs(Role.READ, Within.ITSELF)`
   asks `visit.reach` by itself, and `tests/console/test_scope.py` tries it. It gets a `visit` and returns one of
   these: `visit.page(template, …)`, `await visit.live(template, load)` for a page that follows what happens,
   `visit.done(path, "what was done")` after a change.
2. The module into `pages.PAGES`.
3. `templates/NAME.html`, which extends `base.html`; with `{% set follows = true %}` if it is a live one. What is
   to follow stands in `{% call live("some-id") %} … {% endcall %}`: it is sent again when it has changed, and
   nothing else is touched. A region holds no form: forms are outside, mostly in a `<dialog>`, and a button with
   `data-dialog="its-id"` opens it.
4. A form posts to a path of the page's and has `{{ csrf() }}` in it, which is checked before the handler is asked.

Text that somebody else wrote goes through the filter `visible`, times through `ago`, numbers through `number`.
There is no inline script or style: the content-security policy forbids both.
"""

from typing import TYPE_CHECKING, Any

from milepost.server import MISSING

if TYPE_CHECKING:
    from milepost.console.app import Console

__all__ = ["Console"]


# Imported when first asked for: the command is there where the server is not installed.
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'milepost.console' has no attribute {name!r}")
    try:
        from milepost.console.app import Console
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("milepost"):
            raise
        raise ImportError(MISSING) from error
    return Console
