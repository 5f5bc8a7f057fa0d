"""Lines that meet every border of a tokenizer: scripts, joins, code, spaces, special tokens."""

import random
from typing import Final

LINES: Final = 10_000
_PARTS: Final = (
    *("hello", "World", " the", "'s", "n't", "naïve", "Straße", "e\u0301", "Ω", "ﬁ"),
    *("🙂", "👩‍👩‍👧", "🇫🇷", "👍🏽", "今天", "日本語", "한국어", "ไทย", "עברית", "العربية"),
    *("def f(x):", "\treturn x**2", "  # note", '{"a": [1, 2]}', "</div>", "->", "!=", "\\n"),
    *(" ", "  ", "    ", "\n", "\n\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u200b"),
    *("1", "42", "1234567", "3.14", "١٢٣", "½", "<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    *("user\n", "|>", "<|", "“", "…", "\x00", "\x7f"),
)


def corpus(lines: int = LINES) -> list[str]:
    """Return that many lines, the same at every call."""
    made = random.Random(7)
    return ["".join(made.choices(_PARTS, k=made.randint(1, 24))) for _ in range(lines)]
