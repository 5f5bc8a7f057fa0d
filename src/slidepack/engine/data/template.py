"""Chat templates: Jinja programs that come with a model, run in a sandbox as transformers does."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser

from slidepack.engine.data.sandbox import TemplateEnvironment
from slidepack.engine.data.template_limits import TemplateLimitError

_MARK_OPEN: Final = "\ue0a1\uf8f0\ue0a1"
_MARK_CLOSE: Final = "\ue0a2\uf8f0\ue0a2"
"""Private characters that stand around an answer in a marked render."""
_MARK: Final = re.compile(f"{_MARK_OPEN}|{_MARK_CLOSE}")
_GENERATION: Final = re.compile(r"\{%[-+]?\s*generation\b")
_MAX_SOURCE: Final = 1 << 18
"""Characters; the longest published template has a tenth of that."""
_MAX_DATE_PATTERN: Final = 200
_TEMPLATE_FAULTS: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a template, which is a small program of somebody else's, can raise on a conversation."""


class TemplateRejectedError(Exception):
    """The chat template refused a conversation; the message is the template's own."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}`, with which some templates mark answers."""

    tags = {"generation"}  # noqa: RUF012 (the base class names it so)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Return a call block, as in transformers: names set inside do not leave it."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_output"), [], [], body, lineno=line)

    def _output(self, caller: Callable[[], str]) -> str:
        environment = self.environment
        marked = isinstance(environment, TemplateEnvironment) and environment.budget.marked
        return f"{_MARK_OPEN}{caller()}{_MARK_CLOSE}" if marked else caller()


class ChatTemplate:
    """A parsed chat template."""

    def __init__(self, source: str) -> None:
        """Parse a template as transformers does.

        Raises:
            ValueError: it does not parse, or goes beyond its limits while it is parsed.
        """
        if len(source) > _MAX_SOURCE:
            raise ValueError(f"it is longer than {_MAX_SOURCE} characters")
        self.source = source
        self.has_marks = _GENERATION.search(source) is not None
        """Whether it marks answers by `{% generation %}` itself."""
        self._environment = TemplateEnvironment([jinja2.ext.loopcontrols, _GenerationTag])
        self._environment.globals["raise_exception"] = _raise_exception
        self._environment.globals["strftime_now"] = _strftime_now
        self._environment.budget.renew()
        try:
            self._template = self._environment.from_string(source)
        except (*_TEMPLATE_FAULTS, SyntaxError, MemoryError, TemplateLimitError) as error:
            raise ValueError(str(error) or type(error).__name__) from error

    def render(self, values: dict[str, Any]) -> str:
        """Return what the template makes of the values.

        Raises:
            TemplateRejectedError: it refused them, or broke on them.
            TemplateLimitError: it goes beyond its limits.
        """
        return self._render(values, marked=False)

    def render_marked(self, values: dict[str, Any]) -> tuple[str, list[tuple[int, int]]]:
        """Return what the template makes of the values, and where its own marks say answers stand.

        Raises:
            TemplateRejectedError: it refused the values, or they hold the characters of our marks.
            TemplateLimitError: it goes beyond its limits.
        """
        text, spans, start, last = "", [], 0, 0
        marked = self._render(values, marked=True)
        for found in _MARK.finditer(marked):
            text += marked[last : found.start()]
            last = found.end()
            if found.group() == _MARK_OPEN:
                start = len(text)
            else:
                spans.append((start, len(text)))
        return text + marked[last:], spans

    def _render(self, values: dict[str, Any], *, marked: bool) -> str:
        budget = self._environment.budget
        budget.renew(values, marked=marked)
        try:
            parts = []
            size = 0
            for part in self._template.generate(values):
                parts.append(part)
                size += len(part)
                if size > budget.size:
                    raise TemplateLimitError(f"it writes more than {budget.size} characters")
        except _TEMPLATE_FAULTS as error:
            raise TemplateRejectedError(str(error) or type(error).__name__) from error
        except MemoryError as error:
            raise TemplateLimitError("it needs more memory than there is") from error
        return "".join(parts)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    # The system's library asks for up to 256 times the memory of the pattern.
    if len(form) > _MAX_DATE_PATTERN:
        raise jinja2.TemplateError(f"a date's pattern is longer than {_MAX_DATE_PATTERN}")
    return datetime.now(UTC).astimezone().strftime(form)
