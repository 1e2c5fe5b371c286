"""Which positions, or versions, the statements of a long reading look at, one after the other."""

from collections.abc import Sequence


class Walk:
    """From one number to another, either way, in spans of which each is to bring one page.

    `spans` are the first and the widest. PostgreSQL takes a long range for a short one as long as it knows nothing
    of a table, and then reads all of it for each page, whatever the page's limit: so ranges are short, as far as
    that is possible.

    If it is `open`, something may still appear where nothing was: after the last number. Then a page that did not
    fill its span is followed by one of all the rest.
    """

    def __init__(
        self, low: int, high: int, spans: tuple[int, int], *, backwards: bool, open: bool = False
    ) -> None:
        self._low = low
        self._high = high
        self._span, self._widest = spans
        self._backwards = backwards
        self._open = open

    @property
    def is_over(self) -> bool:
        """Whether all has been looked at."""
        return self._low >= self._high

    @property
    def place(self) -> int:
        """From where to go on."""
        return self._high + 1 if self._backwards else self._low

    @property
    def bounds(self) -> tuple[int, int]:
        """What to look at next: above the first, up to the second."""
        if self._backwards:
            return max(self._low, self._high - self._span), self._high
        return self._low, min(self._high, self._low + self._span)

    def found(self, numbers: Sequence[int], size: int, *, cut: bool) -> None:
        """What there was within the bounds. If the page of this size was `cut`, there may be more of it there."""
        low, high = self.bounds
        if not cut:
            is_end_open = self._open and not self._backwards and high < self._high
            if not is_end_open:
                self._go_on_from(low if self._backwards else high)
            elif numbers:
                self._go_on_from(numbers[-1])
            self._span = self._widest if self._open else min(self._span * 4, self._widest)
            return
        self._go_on_from(numbers[-1] - 1 if self._backwards else numbers[-1])
        # What one full page took, and a little more: several categories are each read through the whole of it.
        took = abs(numbers[-1] - numbers[0]) + 1
        self._span = min(self._span, took * size * 11 // (len(numbers) * 10))

    def _go_on_from(self, number: int) -> None:
        if self._backwards:
            self._high = number
        else:
            self._low = number
