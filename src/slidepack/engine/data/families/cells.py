"""The cells of one row, by role: texts are taken out of them, and what is mended is noted."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from slidepack.engine.data.json_values import parse_json
from slidepack.engine.data.rows import Number, clip, is_blank, mend_text

Repair = Literal[
    "number",
    "json-in-text",
    "nul",
    "surrogate",
    "encoding",
    "no-instruction",
    "no-input",
    "nan",
    "trailing-user-turn",
    "trailing-tool-turn",
    "trailing-system-turn",
]

REPAIRS: Final[dict[Repair, str]] = {
    "number": "Rows in which a number was taken as text",
    "json-in-text": "Rows of which a text was read as the JSON that it holds",
    "nul": "Rows out of which NUL characters were taken",
    "surrogate": "Rows in which broken characters became U+FFFD",
    "encoding": "Rows in which bytes that are no text became U+FFFD",
    "no-instruction": "Rows without an instruction, whose input was taken as the question",
    "no-input": "Rows whose input only says that there is none, and was left out",
    "nan": "Rows in whose tools or calls NaN or an infinity became null, as JSON has neither",
    "trailing-user-turn": "Rows whose end was left out because no answer follows it",
    "trailing-tool-turn": "Rows whose last tool turn was left out because no answer follows it",
    "trailing-system-turn": "Rows whose last system turn was left out: no answer follows it",
}
"""What can be mended, in the words of the report."""


class RejectedError(Exception):
    """The row cannot be learned from."""

    def __init__(self, reason: str, detail: str) -> None:
        """Take a stable word and what was seen."""
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class Cells:
    """One row; the same object serves row after row."""

    def __init__(self) -> None:
        """Start with no row."""
        self.value: dict[str, Any] = {}
        self.columns: Mapping[str, str] = {}
        self.repairs: set[Repair] = set()
        """Of this row."""
        self.unread: set[str] = set()
        """Names of parts of cells that no prompt sees, over all rows."""

    def open(self, value: dict[str, Any], columns: Mapping[str, str]) -> None:
        """Turn to the next row."""
        self.value = value
        self.columns = columns
        if self.repairs:
            self.repairs = set()

    def cell(self, role: str) -> Any:
        """Return what stands in the role's column; None where there is none."""
        column = self.columns.get(role)
        return None if column is None else self.value.get(column)

    def name(self, role: str) -> str:
        """Return the role's column, for messages."""
        return self.columns.get(role, role)

    def string(self, role: str) -> str:
        """Return the role's text; a row without is rejected."""
        cell = self.cell(role)
        content = self.text(cell)
        if content is None:
            raise RejectedError("not-text", f"{self.name(role)} is {self.shown(role)}")
        return content

    def shown(self, role: str) -> str:
        """Return what stands in the role's column as JSON, clipped, for messages."""
        if self.columns.get(role) not in self.value:
            return "missing"
        return clip(self.cell(role))

    def lack(self, role: str) -> str:
        """Return in what way the role's column says nothing."""
        shown = self.shown(role) if self.cell(role) is None else "empty"
        return f"{self.name(role)} is {shown}"

    def optional(self, role: str) -> str:
        """Return the role's text, "" where it has no column, no value or nothing that shows."""
        if role not in self.columns or self.cell(role) is None:
            return ""
        text = self.string(role)
        return "" if is_blank(text) else text

    def question(self, role: str) -> str:
        """Return the role's text, which must say something."""
        if self.cell(role) is None:
            raise RejectedError("no-question", self.lack(role))
        text = self.string(role)
        if is_blank(text):
            raise RejectedError("no-question", self.lack(role))
        return text

    def answer(self, role: str) -> str:
        """Return the text that is learned, which must say something."""
        if self.cell(role) is None:
            raise RejectedError("no-answer", self.lack(role))
        text = self.string(role)
        if is_blank(text):
            raise RejectedError("empty-answer", self.lack(role))
        return text

    def text(self, content: object) -> str | None:
        """Return a text; numbers are taken as they are written, for answers of arithmetic."""
        if isinstance(content, str):
            return self.mend(content)
        if type(content) is int:
            self.repairs.add("number")
            return str(content)
        # NaN and Infinity are no numbers of JSON, but what other programs write for "nothing".
        if isinstance(content, Number) and content.text[-1].isdigit():
            self.repairs.add("number")
            return content.text
        return None

    def listed(self, role: str) -> Any:
        """Return the role's cell, and for a text that is a JSON list, as tables hold it, the list.

        Raises:
            ValueError: the text begins like a list and is none.
        """
        cell = self.cell(role)
        if not isinstance(cell, str) or not cell.lstrip().startswith("["):
            return cell
        listed = parse_json(cell)
        self.repairs.add("json-in-text")
        return listed

    def mend(self, text: str) -> str:
        """Return the text without what no file of ours can hold."""
        mended = mend_text(text)
        if mended is not text:
            if len(mended) != len(text):
                self.repairs.add("nul")
            if mended.count("\ufffd") != text.count("\ufffd"):
                self.repairs.add("surrogate")
        return mended
