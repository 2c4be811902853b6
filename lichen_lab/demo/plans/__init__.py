"""All demos: a package per method in this folder, with its ``DEMO``."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from lichen_lab.demo.core.run import Demo
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

DEFAULT: Final[str] = Task.model_fields["method"].default
"""The method of a task that names none."""


def names() -> tuple[str, ...]:
    """Methods that have a demo, sorted."""
    return tuple(sorted(module.name for module in iter_modules(__path__)))


def demo(method: str) -> Demo:
    """The demo of that method.

    Raises:
        Misconfigured: the method has none; the message lists those that have one.
    """
    if method not in names():
        raise Misconfigured(f"--method {method}: there is no demo of it; there are {', '.join(names())}")
    made: Demo = import_module(f"{__name__}.{method}").DEMO
    return made
