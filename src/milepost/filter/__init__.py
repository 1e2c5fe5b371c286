"""The filter language: expressions over a message's properties.

from milepost.filter import compile_filter

large = compile_filter('amount >= 100 && region == "EU"')
large.matches({"amount": 120, "region": "EU"})
"""

from milepost.errors import FilterError
from milepost.filter.explain import Explanation
from milepost.filter.filter import MAX_BYTES, Filter, compile_filter
from milepost.filter.index import FilterIndex, Handle
from milepost.filter.parser import MAX_LEVELS, MAX_OPERATORS
from milepost.filter.problem import FilterProblem
from milepost.filter.pushdown import Pushdown

__all__ = [
    "MAX_BYTES",
    "MAX_LEVELS",
    "MAX_OPERATORS",
    "Explanation",
    "Filter",
    "FilterError",
    "FilterIndex",
    "FilterProblem",
    "Handle",
    "Pushdown",
    "compile_filter",
]
