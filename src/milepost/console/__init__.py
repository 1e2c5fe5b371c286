"""The console: pages for people, at `/console` of a server.

`milepost serve` has it; an application that mounts the server gives `pages=Console` to `create_app`.

To add a page:

1. Write `pages/NAME.py` with its handlers in `HANDLERS`, and with a `NAV_ITEM` if it belongs into the navigation.
   Each handler says which role it needs and how it keeps to the scope of a token:
   `opt=needs(TokenRole.READ, ScopeRule.ITSELF)` means that it asks `console.scope_guard` by itself, and
   `tests/console/test_scope.py` tries it. A handler takes `console`, a `ConsoleRequest`, and returns one of these:
   `console.page(template, …)`; `await console.live(template, load)` for a live page;
   `console.redirect_with_flash(path, "what was done")` after a change.
2. Add the module to `pages.PAGES`.
3. Write `templates/NAME.html`, which extends `base.html`; with `{% set follows = true %}` for a live page. Its
   live regions stand in `{% call live("some-id") %} … {% endcall %}`: a region is sent again when it has changed,
   and nothing else is touched. A region holds no form: forms are outside, mostly in a `<dialog>`, and a button
   with `data-dialog="its-id"` opens it.
4. Have a form post to a path of the page, with `{{ csrf() }}` in it, which is checked before the handler runs.

Untrusted text goes through the filter `visible`, times through `ago`, numbers through `number`. There is no inline
script or style: the content-security policy forbids both.
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
