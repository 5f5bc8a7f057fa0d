"""The fixed prompts on which an export is compared with the trainer."""

from typing import Final

from slidepack.engine.export.speech import Speech
from slidepack.engine.shape import ModelShape

__all__ = ["fixed_prompts"]

_TEXTS: Final = (
    "The capital of France is Paris, and the river that runs through it is the",
    "def add(first: int, second: int) -> int:\n    return first +",
    "12 + 30 = 42; 7 * 8 = 56; 81 / 9 =",
    "今天天气很好我们去公园。 Ein Satz über Käse — 🙂🚀",
)
_QUESTION: Final = "Name three colours, one a line."
_MOST_TOKENS: Final = 64


def fixed_prompts(speech: Speech, shape: ModelShape, context: int) -> list[list[int]]:
    """Return the token ids of the prompts: four texts, and a question in the model's own template.

    Args:
        speech: tokenizer and template.
        shape: of the model; ids behind its embedding are left out.
        context: tokens that a prompt may have, at most.

    Raises:
        SlidepackError: MODEL-BROKEN.
    """
    prompts = [speech.tokenizer.encode(text, special=True) for text in _TEXTS]
    asked = speech.render(("user", _QUESTION)) if speech.template else None
    if asked is not None:
        prompts.append(speech.tokenizer.encode(asked))
    bound = min(_MOST_TOKENS, context)
    kept = [[index for index in ids if index < shape.vocab][:bound] for ids in prompts]
    return [ids for ids in kept if ids]
