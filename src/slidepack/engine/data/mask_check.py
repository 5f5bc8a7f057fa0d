"""A second way of finding answers, which the first must agree with before anything is learned.

The first renders a conversation with and without each answer (`chat_mask`). The second never looks
at parts of a conversation: it takes the finished text, and either the template's own
`{% generation %}` marks, or the header and end that the template puts around an answer of a
conversation of our own (`markers`), wherever they stand.
"""

from slidepack.engine.data.chat_mask import Sample, UnfitError
from slidepack.engine.data.markers import Markers
from slidepack.engine.data.model_report import MaskMethod
from slidepack.engine.data.rows import ChatRow
from slidepack.engine.data.tokenizer import ChatTokenizer

Span = tuple[int, int]


def mask_method(tokenizer: ChatTokenizer) -> MaskMethod:
    """Return what the second way goes by; `none` where the template gives it nothing."""
    if tokenizer.has_marks:
        return "generation marks"
    return "none" if tokenizer.markers is None else "headers"


def check_masks(row: ChatRow, sample: Sample, tokenizer: ChatTokenizer) -> None:
    """Compare the two ways on a rendering.

    Raises:
        UnfitError: `masks-disagree`.
        TemplateRejectedError: the template refused the conversation when asked for its marks.
        SlidepackError: MODEL-BROKEN.
    """
    if tokenizer.has_marks:
        turns = row.messages[: sample.num_turns]
        text, spans = tokenizer.render_marked(turns, tools=row.tools)
        if text != sample.text:
            raise UnfitError("masks-disagree", "the template's marks change its text")
        _compare_marks(sample, spans)
    elif tokenizer.markers is not None:
        answers = sum(turn.role == "assistant" for turn in row.messages[: sample.num_turns])
        _compare_headers(sample, spans_between(sample.text, tokenizer.markers), answers)


def spans_between(text: str, markers: Markers) -> list[Span]:
    """Return every stretch of text from behind a header to behind the next end token."""
    spans = []
    starts = sorted({start for header in markers.headers for start in _behind(text, header)})
    for start in starts:
        end = text.find(markers.end, start)
        spans.append((start, len(text) if end < 0 else end + len(markers.end)))
    return spans


def _behind(text: str, header: str) -> list[int]:
    found, at = [], text.find(header)
    while at >= 0:
        found.append(at + len(header))
        at = text.find(header, at + 1)
    return found


def _compare_headers(sample: Sample, spans: list[Span], answers: int) -> None:
    for answer in sample.answers:
        if (answer.start, answer.end) not in spans:
            raise _disagreement(sample, answer.turn, spans, (answer.start, answer.end))
    if len(spans) > answers:
        raise UnfitError(
            "masks-disagree",
            f"turn {sample.answers[-1].turn + 1}: {len(spans)} answers seem to start, and the "
            f"conversation has {answers}; a turn may hold the header of another",
        )


def _compare_marks(sample: Sample, spans: list[Span]) -> None:
    """Compare with the template's marks, which may leave the end token out, or go on behind it."""
    for answer in sample.answers:
        for start, end in spans:
            apart = sample.text[min(start, answer.start) : max(start, answer.start)]
            behind = sample.text[answer.end : end]
            if not apart.strip() and end >= answer.end_token and not behind.strip():
                break
        else:
            raise _disagreement(sample, answer.turn, spans, (answer.start, answer.end))


def _disagreement(sample: Sample, turn: int, spans: list[Span], ours: Span) -> UnfitError:
    nearest = min(spans, key=lambda span: abs(span[0] - ours[0]), default=None)
    other = "nowhere" if nearest is None else f"at characters {nearest[0]} to {nearest[1]}"
    return UnfitError(
        "masks-disagree",
        f"turn {turn + 1}: its answer stands at characters {ours[0]} to {ours[1]} of the prompt, "
        f"and {other} by the template's own marks or headers",
    )
