"""A tiny model that chats: its tokenizer, adapters by PEFT, an engine that is driven by hand."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import peft
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from slidepack.engine.chat.contract import Ask, Sampling, Voice
from slidepack.engine.chat.engine import ChatEngine
from slidepack.engine.chat.events import AnyEvent, Done, Token
from slidepack.engine.chat.voices import Voices
from slidepack.engine.data.tokenizer import load_tokenizer
from slidepack.engine.lora.lanes import LanePass
from slidepack.engine.model.cached_pass import CachedPasses
from slidepack.engine.model.kv_cache import KvCache, Piece
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.loading import load_decoder
from support.families import VOCAB, tiny_family
from support.tiny import SPECIAL, save_tokenizer

TARGETS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PROMPTS: Final = ("Hello", "A", "What is a river, and where does it go?")


def chat_model(folder: Path, family: str = "llama") -> Path:
    """Write a random model of a family whose every id is a token; return its folder."""
    tiny_family(folder, family)
    save_tokenizer(folder)
    full_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def full_tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer of as many tokens as the tiny models have rows."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(one, other) for one in "aeiou" for other in "bcdfghlmn"]
    merges = pairs[: VOCAB - len(SPECIAL) - len(alphabet)]
    tokens = [*SPECIAL, *alphabet, *("".join(pair) for pair in merges)]
    assert len(tokens) == VOCAB
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return tokenizer


def base_judge(folder: Path) -> PreTrainedModel:
    """Return transformers' model of a folder."""
    judge: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    judge.eval()
    return judge


def peft_adapter(
    model: Path,
    folder: Path,
    *,
    rank: int = 4,
    targets: Sequence[str] = TARGETS,
    size: float = 0.15,
    seed: int = 1,
) -> Any:
    """Write an adapter with random A and B by PEFT itself; return PEFT's model, ready to judge."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=list(targets), task_type="CAUSAL_LM"
    )
    judge = peft.get_peft_model(base_judge(model), config)
    with torch.no_grad():
        for name, parameter in judge.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, size)
    judge.save_pretrained(str(folder))
    return judge.eval()


def judged_ids(judge: Any, prompt: Sequence[int], most: int) -> list[int]:
    """Return transformers' greedy answer, without the token that ends it."""
    ids = torch.tensor([list(prompt)])
    whole = judge.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=most
    )
    found: list[int] = whole[0, len(prompt) :].tolist()
    return found[: found.index(1)] if 1 in found else found


class ShortOfMemory(CachedPasses):
    """Has no memory for passes of more sequences than `most`."""

    most = 1 << 30

    def __init__(self, *arguments: Any) -> None:
        """Keep what was passed, too."""
        super().__init__(*arguments)
        self.passed: list[Piece] = []

    def advance(self, pieces: Sequence[Piece], lanes: LanePass | None) -> Tensor:
        """Refuse or pass."""
        if len(pieces) > self.most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to")
        self.passed.extend(pieces)
        return super().advance(pieces, lanes)


class Chat:
    """An engine on the CPU, and everything that it told."""

    def __init__(
        self,
        model: Path,
        voices: dict[str, Path] | None = None,
        *,
        seats: int = 8,
        context: int = 200,
        check_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """Load the model and its adapters."""
        cpu = torch.device("cpu")
        self.model = model
        self.tokenizer = load_tokenizer(model)
        decoder = load_decoder(model, cpu, torch.float32)
        choices = layer_attention(decoder.shape, cpu, torch.float32)
        cache = KvCache(decoder.shape, seats, context, cpu, torch.float32)
        self.passes = ShortOfMemory(decoder, choices, cache, check_stop)
        self.events: list[AnyEvent] = []
        loaded = Voices(model, decoder, choices, self.tokenizer)
        self.engine = ChatEngine(self.passes, loaded, seats, self.events.append)
        for name, folder in (voices or {}).items():
            self.load(name, folder)

    def load(self, name: str, folder: Path) -> None:
        """Load an adapter."""
        self.engine.load(Voice(name=name, folder=str(folder)))

    def ask(
        self,
        ask_id: str,
        prompt: str,
        voices: Sequence[str] = ("base",),
        most: int | None = 24,
        **fields: Any,
    ) -> None:
        """Ask to go on with a text."""
        sampling = Sampling(**fields.pop("sampling", {}))
        self.engine.ask(
            Ask(
                id=ask_id,
                voices=tuple(voices),
                prompt=prompt,
                max_tokens=most,
                sampling=sampling,
                **fields,
            )
        )

    def run(self) -> None:
        """Let every answer come to its end."""
        while self.engine.is_busy:
            self.engine.step()

    def text(self, ask_id: str, voice: str = "base") -> str:
        """Return what was told of an answer."""
        return "".join(
            event.text
            for event in self.events
            if isinstance(event, Token) and (event.id, event.voice) == (ask_id, voice)
        )

    def done(self, ask_id: str, voice: str = "base") -> Done:
        """Return the one end of an answer."""
        (found,) = (
            event
            for event in self.events
            if isinstance(event, Done) and (event.id, event.voice) == (ask_id, voice)
        )
        return found

    def answer(
        self, ask_id: str, prompt: str, voice: str = "base", most: int | None = 24, **fields: Any
    ) -> str:
        """Ask, run, and return the text."""
        self.ask(ask_id, prompt, (voice,), most, **fields)
        self.run()
        return self.text(ask_id, voice)

    def expected(self, judge: Any, prompt: str, most: int = 24) -> str:
        """Return the text of transformers' greedy answer, less half a character at its end."""
        ids = judged_ids(judge, self.tokenizer.encode(prompt, special=True), most)
        whole = self.tokenizer.decode(self.tokenizer.encode(prompt) + ids)
        return whole[len(prompt) :].rstrip("\ufffd")
