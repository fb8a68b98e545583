"""Checks of arguments. An error names the argument, and no number is rounded to fit."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable
from typing import Any


def integer(name: str, value: Any) -> int:
    """A whole number."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected a whole number, found {value!r}") from None


def whole(name: str, value: Any, least: int = 1) -> int:
    """A whole number that is not less than `least`."""
    number = integer(name, value)
    if number < least:
        raise ValueError(f"{name}: expected {least} or more, found {number}")
    return number


def seconds(name: str, value: Any) -> float:
    """A time, which may have no end."""
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: expected a number of seconds, found {value!r}")
    if math.isnan(value) or value < 0:
        raise ValueError(f"{name}: expected a number of seconds, 0 or more, found {value}")
    return float(value)


def token_ids(given: Any) -> list[int]:
    """Ids of tokens. A text is none, though Python can make numbers of the digits in it."""
    if isinstance(given, str | bytes | bytearray):
        raise TypeError(f"ids: expected token ids, found {type(given).__name__}; alight.Tokenizer(…).encode(text) makes them of a text")
    if not isinstance(given, Iterable):
        raise TypeError(f"ids: expected token ids, found {given!r}")
    ids = []
    for one in given:
        try:
            ids.append(operator.index(one))
        except TypeError:
            what = f"the text {one!r}; alight.Tokenizer(…).encode(text) makes them of a text" if isinstance(one, str) else repr(one)
            raise TypeError(f"ids: expected whole numbers, found {what}") from None
    return ids
