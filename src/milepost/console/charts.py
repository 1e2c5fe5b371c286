"""Charts as SVG, drawn here: lines over the last minutes, without a script."""

from collections.abc import Sequence

from markupsafe import Markup, escape

WIDTH, HEIGHT = 120, 24
"""Of a sparkline, in its own units."""

Line = Sequence[tuple[float, float]]
"""Moments, in seconds, and what there was at each."""


def sparkline(line: Line, label: str) -> Markup:
    """A small line; flat if nothing changes, so that it is drawn again only when something does."""
    return _drawn("spark", line, label)


def chart(line: Line, label: str) -> Markup:
    """The same, large."""
    return _drawn("chart", line, label)


def _drawn(kind: str, line: Line, label: str) -> Markup:
    # Put together as plain text, since there are hundreds on a page; all but the label is ours.
    path = "M" + "L".join(f"{x:g} {y:g}" for x, y in _places(line))
    return Markup(  # noqa: S704
        f'<svg class="{kind}" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}"><path class="spark-area" d="{path}L{WIDTH} {HEIGHT}L0 {HEIGHT}Z"/>'
        f'<path class="spark-line" d="{path}"/></svg>'
    )


def _places(line: Line) -> list[tuple[float, float]]:
    """Points in the units of the drawing, the newest at the right edge."""
    values = [value for _, value in line]
    if not values or min(values) == max(values):
        level = 1.0 if not values or values[0] == 0 else HEIGHT / 2
        return [(0, HEIGHT - level), (WIDTH, HEIGHT - level)]
    top, first = max(values), line[0][0]
    scale = WIDTH / max(0.001, line[-1][0] - first)
    return [
        (round((at - first) * scale, 1), round(HEIGHT - 1 - value / top * (HEIGHT - 2), 1)) for at, value in line
    ]
