"""Chat templates: Jinja programs that come with a model, run in a sandbox as transformers does."""

import json
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

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


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Runs a template that came with a model without letting it at Python's insides."""

    def unsafe_undefined(self, obj: object, attribute: str) -> NoReturn:
        """Refuse at once; Jinja would print an unsafe attribute as nothing."""
        raise jinja2.exceptions.SecurityError(
            f"the template asks for {attribute!r} of a {type(obj).__name__}"
        )


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}`, with which some templates mark answers; its body is plain output."""

    tags = {"generation"}  # noqa: RUF012 (the base class names it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Return the statements up to the end tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def parse_template(source: str) -> jinja2.Template:
    """Parse a chat template as transformers does.

    Raises:
        jinja2.TemplateError: it does not parse.
        RecursionError: it is nested too deeply.
    """
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[jinja2.ext.loopcontrols, _GenerationTag],
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.filters["tojson"] = _to_json
    return environment.from_string(source)


def render_template(template: jinja2.Template, values: dict[str, Any]) -> str:
    """Return what the template makes of the values.

    Raises:
        TemplateRejectedError: it refused them, or broke on them.
    """
    try:
        return template.render(values)
    except _TEMPLATE_FAULTS as error:
        raise TemplateRejectedError(str(error) or type(error).__name__) from error


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now(UTC).astimezone().strftime(form)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as transformers' filter of that name does; Jinja's own escapes HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
