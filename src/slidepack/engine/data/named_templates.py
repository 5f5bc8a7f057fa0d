"""Chat templates for base models, which come with none.

`chatml` marks turns by `<|im_start|>` and `<|im_end|>`. Many base models have these as tokens of
their own. Where one has not, a new token would need a trained embedding, so turns start with the
same marks as plain text and end with the model's own end token, which generation stops at.
`alpaca` marks turns by plain headings and ends answers with the model's own end token.
"""

from typing import Final, Literal

import msgspec

TemplateChoice = Literal["auto", "chatml", "alpaca", "none"]
"""What a base model's conversations are rendered with: `auto` takes `chatml` where its tokens are
in the vocabulary, and `alpaca` where they are not. A model's own template always wins."""

_CHATML_TOKENS: Final = ("<|im_start|>", "<|im_end|>")
_CHATML: Final = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + END + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_ALPACA_HEADINGS: Final = ("### Instruction:", "### Response:")
_ALPACA: Final = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] + '\n\n' }}"
    "{% elif m['role'] == 'user' %}{{ '### Instruction:\n' + m['content'] + '\n\n' }}"
    "{% elif m['role'] == 'assistant' %}{{ '### Response:\n' + m['content'] + END + '\n\n' }}"
    "{% else %}{{ raise_exception('the template alpaca has no place for tools') }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}"
)


class NamedTemplate(msgspec.Struct, frozen=True):
    """A template for a model that has none."""

    name: Literal["chatml", "alpaca"]
    source: str
    """Jinja; it needs `bos_token` and `eos_token`, as every template may."""
    markers: tuple[str, ...]
    """With which it marks turns; no message may hold them."""
    reason: str
    """Why it was taken, and whether its marks are tokens or text; for people."""


def named_template(
    choice: TemplateChoice, vocabulary: frozenset[str], *, starts: bool
) -> NamedTemplate | None:
    """Return the template for a model without one, or None for `none`.

    Args:
        choice: the user's.
        vocabulary: the model's added tokens.
        starts: whether the model's texts start with its `bos_token`.
    """
    if choice == "none":
        return None
    tokens = vocabulary.issuperset(_CHATML_TOKENS)
    start = "{{ bos_token }}" if starts else ""
    if choice == "chatml" or (choice == "auto" and tokens):
        end = f"'{_CHATML_TOKENS[1]}'" if tokens else "eos_token"
        have = (
            "its marks are tokens of the model"
            if tokens
            else "its marks are no tokens of the model: they are text, and turns end with its own "
            "end token"
        )
        return NamedTemplate(
            "chatml", start + _CHATML.replace("END", end), _CHATML_TOKENS, _reason("chatml", have)
        )
    have = "its headings are text, and answers end with the model's own end token"
    return NamedTemplate(
        "alpaca",
        start + _ALPACA.replace("END", "eos_token"),
        _ALPACA_HEADINGS,
        _reason("alpaca", have),
    )


def _reason(name: str, have: str) -> str:
    return f"the model has no chat template, so {name} stands in: {have}"
