"""Tables for notebooks: rows as dicts, without a library for tables."""

from collections.abc import Mapping
from html import escape
from typing import Any, Final

from protocol.errors import Misconfigured

_SHOWN: Final = 60
"""Rows of a table that is shown; of a longer one the first and the last."""
_WIDTH: Final = 60
"""Characters of a cell that is shown."""


class Rows(list[dict[str, Any]]):
    """Rows of a table: a list of dicts that is shown as a table, by ``print`` and in a notebook."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names that any row has, in the order in which they first appear."""
        return tuple(dict.fromkeys(name for row in self for name in row))

    def column(self, name: str) -> list[Any]:
        """The values of one column; None where a row has none.

        Raises:
            KeyError: no row has it; the message names those that there are.
        """
        if name not in self.columns:
            raise KeyError(f"there is no column {name!r}; there are {', '.join(self.columns) or 'none'}")
        return [row.get(name) for row in self]

    def to_pandas(self) -> Any:
        """The rows as a ``pandas.DataFrame``.

        Raises:
            Misconfigured: pandas is not installed.
        """
        try:
            import pandas as pd  # noqa: PLC0415 - most programs do without
        except ModuleNotFoundError:
            raise Misconfigured(
                "to_pandas needs pandas, which is not installed: pip install pandas"
            ) from None
        return pd.DataFrame(list(self), columns=list(self.columns))

    def __str__(self) -> str:
        names = self.columns
        if not names:
            return "(no rows)"
        lines = [list(names), *(_cells(row, names) for row in self._shown())]
        widths = [max(len(line[n]) for line in lines) for n in range(len(names))]
        text = [
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
        ]
        return "\n".join([*text, *self._left_out()])

    def _repr_html_(self) -> str:
        names = self.columns
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(row, names))}</tr>"
            for row in self._shown()
        )
        more = "".join(f"<p>{escape(words)}</p>" for words in self._left_out())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"

    def _shown(self) -> list[dict[str, Any]]:
        half = _SHOWN // 2
        return list(self) if len(self) <= _SHOWN else [*self[:half], *self[-half:]]

    def _left_out(self) -> list[str]:
        return [f"({len(self)} rows, the first and last {_SHOWN // 2})"] if len(self) > _SHOWN else []


def _cells(row: Mapping[str, Any], names: tuple[str, ...]) -> list[str]:
    return [_cell(row.get(name)) for name in names]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."
