"""Modules that are imported when something of them is first used.

So every command can be listed, and its options shown, on a Python that has none of the reference libraries. A module
that imports in this way has `from __future__ import annotations`, since its annotations may name what is not there.
"""

from importlib import import_module
from types import ModuleType


class _Lazy(ModuleType):
    def __getattr__(self, name: str):
        return getattr(import_module(self.__name__), name)

    def __setattr__(self, name: str, value) -> None:
        setattr(import_module(self.__name__), name, value)


def lazily(name: str) -> ModuleType:
    """Stands for the module `name`; importing fails at the first use if it is not installed."""
    return _Lazy(name)
