"""Rows to samples that fit: what becomes of those longer than `max_seq_len`."""

import math
from collections.abc import Callable

from slidepack.engine.contract.job import TooLong
from slidepack.engine.data.masking import EncodedRow, encode_whole, start_ids
from slidepack.engine.data.rows import ChatRow, CompletionRow, Reject, Row, Turn
from slidepack.engine.data.tokenizer import ChatTokenizer


def encode_rows(
    row: Row, tokenizer: ChatTokenizer, max_seq_len: int, too_long: TooLong = "drop"
) -> list[EncodedRow | Reject]:
    """Encode a row into samples that fit, and rejects that say what does not.

    Raises:
        SlidepackError: MODEL-NO-CHAT-TEMPLATE or MODEL-BROKEN; see `encode_whole`.
    """
    samples = encode_whole(row, tokenizer)
    return fit_samples(row, samples, tokenizer, max_seq_len, too_long)


def fit_samples(
    row: Row,
    samples: list[EncodedRow | Reject],
    tokenizer: ChatTokenizer,
    max_seq_len: int,
    too_long: TooLong,
) -> list[EncodedRow | Reject]:
    """Return the samples that `encode_whole` made of a row, or what takes their place."""
    if all(isinstance(s, Reject) or len(s.ids) <= max_seq_len for s in samples):
        return samples
    if too_long == "split" and isinstance(row, ChatRow):
        return _split_chat(row, tokenizer, max_seq_len)
    fitting: list[EncodedRow | Reject] = []
    for sample in samples:
        if isinstance(sample, Reject) or len(sample.ids) <= max_seq_len:
            fitting.append(sample)
        elif too_long == "cut":
            fitting.append(_cut(sample, max_seq_len))
        elif too_long == "split" and not isinstance(row, CompletionRow):
            fitting += _split_ids(sample, start_ids(tokenizer), max_seq_len)
        else:
            fitting.append(_reject(sample, max_seq_len))
    return fitting


def _reject(sample: EncodedRow, max_seq_len: int) -> Reject:
    detail = f"{len(sample.ids)} tokens, the limit is {max_seq_len}"
    return Reject(line=sample.line, reason="too-long", detail=detail)


def _cut(sample: EncodedRow, max_seq_len: int) -> EncodedRow | Reject:
    kept = EncodedRow(sample.line, sample.ids[:max_seq_len], sample.supervised[:max_seq_len])
    if kept.num_supervised:
        return kept
    detail = f"{len(sample.ids)} tokens, and nothing to learn in the first {max_seq_len}"
    return Reject(line=sample.line, reason="too-long", detail=detail)


def _split_ids(sample: EncodedRow, start: list[int], limit: int) -> list[EncodedRow | Reject]:
    """Divide ids into pieces of about the same length; each starts as a text does."""
    given = tuple(start) if list(sample.ids[: len(start)]) == start else ()
    ids, supervised = sample.ids[len(given) :], sample.supervised[len(given) :]
    size = math.ceil(len(ids) / math.ceil(len(ids) / (limit - len(given))))
    pieces: list[EncodedRow | Reject] = []
    for begin in range(0, len(ids), size):
        mask = (False,) * len(given) + supervised[begin : begin + size]
        piece = EncodedRow(sample.line, given + ids[begin : begin + size], (False, *mask[1:]))
        if piece.num_supervised:
            pieces.append(piece)
    return pieces or [_reject(sample, limit)]


def _split_chat(row: ChatRow, tokenizer: ChatTokenizer, limit: int) -> list[EncodedRow | Reject]:
    """Divide a conversation before questions, and fill each piece as far as it goes."""
    opening, exchanges = _exchanges(row)
    pieces: list[EncodedRow | Reject] = []
    while exchanges:

        def encode(count: int, left: list[list[Turn]] = exchanges) -> list[EncodedRow | Reject]:
            return _encode_exchanges(row, opening, left[:count], tokenizer)

        taken, samples = _fill(encode, len(exchanges), limit)
        pieces += [
            s if isinstance(s, Reject) or len(s.ids) <= limit else _reject(s, limit)
            for s in samples
        ]
        exchanges = exchanges[taken:]
    kept = [piece for piece in pieces if isinstance(piece, EncodedRow)]
    # A piece without a trained answer teaches nothing, which is no loss where others do.
    lost = [p for p in pieces if isinstance(p, Reject) and p.reason != "nothing-to-learn"]
    return [*kept, *lost] or pieces[:1]


def _fill(
    encode: Callable[[int], list[EncodedRow | Reject]], most: int, limit: int
) -> tuple[int, list[EncodedRow | Reject]]:
    """Return how many exchanges fit, one at least, and their samples.

    Tried are about as many numbers as that number has bits, as each encodes all of them again.
    """
    fitting, samples = 1, encode(1)
    alone = any(isinstance(s, EncodedRow) and len(s.ids) > limit for s in samples)
    beyond = 2 if alone else most + 1
    while fitting + 1 < beyond:
        tried = min(2 * fitting, (fitting + beyond) // 2)
        longer = encode(tried)
        if any(isinstance(s, Reject) or len(s.ids) > limit for s in longer):
            beyond = tried
        else:
            fitting, samples = tried, longer
    return fitting, samples


def _encode_exchanges(
    row: ChatRow, opening: list[Turn], exchanges: list[list[Turn]], tokenizer: ChatTokenizer
) -> list[EncodedRow | Reject]:
    turns = [*opening, *(turn for exchange in exchanges for turn in exchange)]
    return encode_whole(ChatRow(row.line, tuple(turns), row.tools), tokenizer)


def _exchanges(row: ChatRow) -> tuple[list[Turn], list[list[Turn]]]:
    """Return the system turns at the start, and the rest in stretches that start with a question.

    A question that follows another directly belongs to it.
    """
    opening: list[Turn] = []
    exchanges: list[list[Turn]] = []
    before = ""
    for turn in row.messages:
        if turn.role == "system" and not exchanges:
            opening.append(turn)
            continue
        if not exchanges or (turn.role == "user" and before != "user"):
            exchanges.append([])
        exchanges[-1].append(turn)
        before = turn.role
    return opening, exchanges
