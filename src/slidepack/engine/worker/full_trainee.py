"""Full fine-tuning as a run trains it: every weight, through the sliding walk."""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import platformdirs
import torch
from torch import Tensor

from slidepack.engine.contract.job import ContinueRef, OptimSpec
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.drive_wear import copies_text
from slidepack.engine.export.folder import write_model_folder
from slidepack.engine.importer.fingerprint import content_hash
from slidepack.engine.lora.optimizer import learning_rate
from slidepack.engine.model.batch import PackedBatch, micro_batches, pack_rows
from slidepack.engine.model.generate import generate_greedy
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.loading import Shards
from slidepack.engine.model.loss import LossSum
from slidepack.engine.origins import origin_broken
from slidepack.engine.shape import ModelShape, read_shape
from slidepack.engine.sliding.build import CPU_SHARES, FullSetup, FullTrainer, build_full
from slidepack.engine.sliding.load_state import fill_state, state_tensors
from slidepack.engine.sliding.sliding_layers import SlidingLayers
from slidepack.engine.sliding.state import StateFormat, TrainState, units_of
from slidepack.engine.sliding.tier_options import tier_options
from slidepack.engine.sliding.updates import StepSettings
from slidepack.engine.worker.full_change import Source, compare_with_start
from slidepack.engine.worker.judging_pass import RowScore, score_rows
from slidepack.engine.worker.learning import Change
from slidepack.engine.worker.pulse import Pulse
from slidepack.engine.worker.tier import TierFolders, require_copies, tier_setup
from slidepack.engine.worker.transport_notice import TransportNotice
from slidepack.engine.worker.unit_files import (
    UnitWeights,
    read_units,
    take_units,
    write_units,
)
from slidepack.engine.worker.wear import WearNotice
from slidepack.kernels import adamw_scalars

__all__ = ["FullTrainee", "load_full"]


class FullTrainee:
    """Every weight of a model."""

    def __init__(
        self,
        base: Path,
        shape: ModelShape,
        state: TrainState,
        plan: RunPlan,
        optim: OptimSpec,
        device: torch.device,
        check_stop: Callable[[], None],
        tighter: Callable[[RunPlan], RunPlan | None],
        warn: Callable[[str, str], None],
        folders: TierFolders | None = None,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """Bind a state that is filled with the base's weights.

        Args:
            base: its folder.
            shape: sizes.
            state: master weights and moments.
            plan: how the machine is used.
            optim: AdamW's settings.
            device: where the passes run.
            check_stop: may raise where an evaluation can be abandoned.
            tighter: returns a smaller plan, or None where there is none.
            warn: reports a code and a sentence.
            folders: of what is on drives; let go of with this. None where nothing is.
            on_progress: called, by any thread, when a step, its updates or a save have got on.
        """
        self.shape, self.device, self.dtype = shape, device, state.form.compute_dtype
        self.attention = layer_attention(shape, device, self.dtype)
        self.trainable_params = shape.total_params
        self.result_bytes = sum(unit.elements for unit in state.units) * self.dtype.itemsize
        # Without clipping nothing waits for the norm.
        self.applies_bad_steps = optim.clip_norm <= 0.0
        self.keeps_exactly = state.tier is not None
        self.carried_steps = 0
        self._origin: ContinueRef | None = None
        self._base = base
        self._state = state
        self._optim = optim
        self._check_stop = check_stop
        self._plan = plan
        self._tighter = tighter
        self._warn = warn
        self._folders = folders
        self._on_progress = on_progress
        nvme = None if plan.full is None else plan.full.nvme
        self._wear = None if nvme is None else WearNotice(nvme, self._warn_of_wear)
        tier = state.tier
        self._way = None if tier is None else TransportNotice(tier.transport, warn)
        self._built: FullTrainer | None = None

    @property
    def checkpoint_bytes(self) -> int:
        """What `save` writes; a link takes no room."""
        return self._state.ram_bytes + self._copied_bytes

    @property
    def drives(self) -> str:
        """What moves state to drives and back, with its reason; empty where none is there."""
        tier = self._state.tier
        return "" if tier is None else f"{tier.transport.name}: {tier.transport.reason}"

    @property
    def _copied_bytes(self) -> int:
        """Of what is on drives, by a checkpoint: all of it, or nothing where that is links."""
        tier = self._state.tier
        return tier.bytes if tier is not None and tier.copied else 0

    def _warn_of_wear(self, code: str, message: str) -> None:
        self._warn(code, message + copies_text(self._copied_bytes))

    @property
    def _trainer(self) -> FullTrainer:
        """Built when a pass first needs it: weights on the card are copies of the state then."""
        if self._built is None:
            self._built = self._rehearsed()
        return self._built

    def _rehearsed(self) -> FullTrainer:
        """Build, and run the largest step there can be on a card, which may be too large for it.

        Raises:
            torch.OutOfMemoryError: the next smaller plan did not fit either.
        """
        try:
            return self._rehearse()
        except torch.OutOfMemoryError:
            smaller = self._tighter(self._plan)
            if smaller is None:
                raise
        self._plan = smaller
        self._warn("GPU-OUT-OF-MEMORY", smaller.reason)
        torch.cuda.empty_cache()
        return self._rehearse()

    def _rehearse(self) -> FullTrainer:
        trainer = self._build()
        if self.device.type == "cpu":
            return trainer
        try:
            with trainer.optimizer.rehearsal():
                trainer.driver.train_step(
                    self._largest_step(), self._settings(0, 1), self._optim.clip_norm
                )
        except BaseException:
            trainer.close()
            raise
        return trainer

    def _largest_step(self) -> list[PackedBatch]:
        full = self._plan.full
        assert full is not None
        ids, counted = (0,) * full.longest_row, (True,) * full.longest_row
        rows = [EncodedRow(0, ids, counted)] * max(1, full.max_tokens // full.longest_row)
        return self._packed(rows)

    def _packed(self, rows: Sequence[EncodedRow]) -> list[PackedBatch]:
        return [
            pack_rows(group, self.shape, self.device, self.dtype)
            for group in micro_batches(rows, self.micro_batch_tokens)
        ]

    def _build(self) -> FullTrainer:
        plan, full = self._plan, self._plan.full
        assert full is not None
        options = tier_options(full, self.shape)
        setup = FullSetup(
            device=self.device,
            weights=full.weights,
            weight_slots=full.weight_slots,
            grad_slots=full.grad_slots,
            host_grad_slots=full.host_grad_slots,
            cpu_share=CPU_SHARES[full.engine],
            rows=full.rows,
            max_tokens=full.max_tokens,
            max_micro_tokens=max(plan.micro_batch_tokens, full.longest_row),
            accumulate=full.max_tokens > plan.micro_batch_tokens,
            clip=self._optim.clip_norm > 0.0,
            cpu_threads=plan.cpu_threads,
            cache=platformdirs.user_cache_path("slidepack") / "native",
            stages_on_card=self._has_room_on_card(options.get("state_stages", 0)),
            **options,
        )
        return build_full(
            self.shape, self._state, setup, self._check_stop, on_progress=self._on_progress
        )

    def _has_room_on_card(self, stages: int) -> bool:
        """Return whether the card has room for chunks of state beside what the plan counts.

        The plan counts them in the RAM: it is made before it is known what the driver offers.
        """
        if self.device.type == "cpu" or self._state.tier is None:
            return False
        # What a try before this one has given up is free as well.
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self.device)
        return free >= self._plan.predicted_device_bytes + stages * self._state.tier_stage_bytes

    @property
    def micro_batch_tokens(self) -> int:
        """Most tokens of a micro-batch, unless a single row is longer."""
        return self._plan.micro_batch_tokens

    @property
    def reason(self) -> str:
        """Which optimizer engines run."""
        return self._trainer.reason

    def train_step(
        self, rows: Sequence[EncodedRow], step: int, total_steps: int
    ) -> tuple[LossSum, float]:
        """Do one optimizer step; the last updates may still be under way when this returns."""
        # Building the trainer may tighten the plan, which decides the micro-batches.
        driver = self._trainer.driver
        settings, begun = self._settings(step, total_steps), time.monotonic()
        result = driver.train_step(self._packed(rows), settings, self._optim.clip_norm)
        if self._wear is not None:
            self._wear.after_step(begun, step, total_steps)
        if self._way is not None:
            self._way.after_step()
        return result.loss, result.grad_norm

    def _settings(self, step: int, total_steps: int) -> StepSettings:
        optim = self._optim
        scalars = adamw_scalars(
            torch.tensor(self.carried_steps + step + 1),
            torch.tensor(1.0),
            lr=learning_rate(optim, step, total_steps),
            beta1=optim.beta1,
            beta2=optim.beta2,
            weight_decay=optim.weight_decay,
        )
        return StepSettings(
            scalars_host=scalars,
            scalars_device=scalars.to(self.device),
            beta1=optim.beta1,
            beta2=optim.beta2,
            eps=optim.eps,
        )

    def evaluate(self, rows: Sequence[EncodedRow]) -> LossSum:
        """Return the summed loss of the rows."""
        driver = self._trainer.driver
        return driver.evaluate(self._packed(rows))

    def answer(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        stop_ids: frozenset[int],
        *,
        tuned: bool,
    ) -> list[list[int]]:
        """Continue prompts greedily; the base is gone once training has begun."""
        del tuned
        return generate_greedy(
            self._decoder(),
            None,
            self.attention,
            prompts,
            max_new_tokens=max_new_tokens,
            stop_ids=stop_ids,
            check_stop=self._check_stop,
        )

    def score(self, rows: Sequence[EncodedRow], *, tuned: bool) -> list[RowScore]:
        """Score rows; the base is gone once training has begun."""
        del tuned
        return score_rows(
            self._decoder(),
            None,
            self.attention,
            rows,
            max_tokens=self.micro_batch_tokens,
            check_stop=self._check_stop,
        )

    def _decoder(self) -> Decoder:
        """Return the model as it is now, its layers sliding."""
        window = self._trainer.driver.window
        window.ends.renew()
        return Decoder(
            self.shape,
            window.ends.embedding,
            SlidingLayers(window.weights, self.shape, window.prefetch),
            window.ends.final_norm,
            window.ends.head,
        )

    def save(self, folder: Path) -> str:
        """Write each unit's state as it is in memory."""
        self._trainer.updates.drain()
        return write_units(self._state, folder, self._on_progress)

    def load(self, folder: Path, digest: str) -> None:
        """Read each unit's state in place; where that fails, the beginning is read again."""
        assert self._built is None, "a checkpoint is read before the first pass"
        try:
            on_drives = read_units(self._state, folder, digest)
        except (OSError, ValueError):
            # The part that was read may be all that is wrong.
            self._state.clear_moments()
            if self._origin is None:
                fill_state(self._base, self.shape, self._state)
            else:
                self.begin_from(self._origin)
            raise
        if self._wear is not None and on_drives:
            self._wear.known_from_before()

    def begin_from(self, origin: ContinueRef) -> None:
        """Take the weights that another job left, and its moments where they are to be taken."""
        assert self._built is None, "what a run begins with is read before the first pass"
        folder = Path(origin.path)
        if origin.kind == "checkpoint":
            take_units(self._state, folder, origin.digest, moments=origin.taken == "state")
        else:
            if content_hash(folder) != origin.digest:
                raise ValueError("it is damaged or was changed (its digest differs)")
            if read_shape(folder) != self.shape:
                raise ValueError("it is a model of other sizes")
            fill_state(folder, self.shape, self._state)
        self._origin = origin

    def is_finite(self) -> bool:
        """Return whether every weight is a number."""
        self._trainer.updates.drain()
        return self._state.is_finite(self._check_stop)

    def change(self) -> Change:
        """Return what differs from the base, tensor by tensor."""
        self._trainer.updates.drain()
        try:
            return compare_with_start(self._start(), self.shape, self._state, self._check_stop)
        except (OSError, ValueError) as error:
            if self._origin is None:
                raise
            raise origin_broken(self._origin, error) from error

    def _start(self) -> Source:
        """Return what reads the weights that training began with."""
        origin = self._origin
        if origin is None:
            return Shards(self._base).read
        if origin.kind == "model":
            return Shards(Path(origin.path)).read
        return UnitWeights(Path(origin.path), self.shape, self._state.units).read

    def write_result(self, folder: Path, base_name: str) -> None:
        """Write a Hugging Face folder in the dtype that was trained."""
        del base_name
        self._trainer.updates.drain()
        write_model_folder(self._base, self._tensors(), self.dtype, folder / "model")

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for named in state_tensors(self.shape, self._state):
            yield named
            # Whoever asks for the next one has written this one.
            self._on_progress()

    def close(self) -> None:
        """End the engines and give pinned memory back."""
        if self._built is not None:
            self._built.close()
        self._state.close()
        if self._folders is not None:
            self._folders.close()


def load_full(
    folder: Path,
    plan: RunPlan,
    optim: OptimSpec,
    device: torch.device,
    on_layer: Callable[[int, int], None],
    check_stop: Callable[[], None],
    tighter: Callable[[ModelShape, RunPlan], RunPlan | None],
    warn: Callable[[str, str], None],
    run: RunFolder | None = None,
) -> FullTrainee:
    """Read a model into host memory, layer by layer, and start the optimizer's engines.

    Args:
        folder: of the model.
        plan: how the machine is used.
        optim: AdamW's settings.
        device: where the passes run.
        on_layer: called with (layers done, layers in all); may raise to stop the load.
        check_stop: may raise where an evaluation can be abandoned.
        tighter: returns a smaller plan, or None where there is none.
        warn: reports a code and a sentence.
        run: whose checkpoints what is on drives is linked to, and where progress is shown; needed
            where the plan has drives.

    Raises:
        SlidepackError: the errors of `read_shape`, MODEL-PICKLE, MODEL-BROKEN, DISK-FULL,
            DISK-UNWRITABLE, DISK-FAILED.
        OSError: the memory is not there.
    """
    assert plan.full is not None
    shape = read_shape(folder)
    form = StateFormat(split=plan.precision == "bf16", moments=plan.full.moments)
    folders, tier = None, None
    try:
        if plan.full.nvme is not None:
            assert run is not None
            folders = TierFolders(tuple(map(Path, plan.full.nvme.folders)), run.root.parent)
            tier = tier_setup(plan, device, run, folders)
        state = TrainState(units_of(shape), form, pin=device.type == "cuda", tier=tier)
        if run is not None:
            require_copies(state, run)
        fill_state(folder, shape, state, on_layer)
    except BaseException:
        if folders is not None:
            folders.close()
        raise
    return FullTrainee(
        folder,
        shape,
        state,
        plan,
        optim,
        device,
        check_stop,
        functools.partial(tighter, shape),
        warn,
        folders,
        Pulse(run.root).beat if run is not None else lambda: None,
    )
