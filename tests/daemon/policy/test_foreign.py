"""Others' use of the cards, from what drivers said."""

import msgspec
import pytest
from support.cards import GB, card, user

from slidepack.daemon.policy.foreign import (
    ForeignUse,
    OwnUse,
    foreign_use,
    hot_cards,
    hot_reason,
    idle_bytes,
    lost_cards,
    vram_and_load_reasons,
)
from slidepack.daemon.policy.gpu_sample import GpuSample, card_key, no_gpus, sample_gpus
from slidepack.daemon.policy.patterns import NamePatterns
from slidepack.daemon.policy.rules import Policy
from slidepack.daemon.probe.gpu import Gpu

POLICY = Policy()
IGNORED = NamePatterns(POLICY.ignored_processes)
OURS = 100


def own(running: bool = True, settling: bool = False, planned: float | None = None) -> OwnUse:
    return OwnUse(
        is_ours=lambda pid: pid == OURS,
        running=running,
        settling=settling,
        planned_vram_bytes=None if planned is None else int(planned * GB),
    )


def use(
    gpu: Gpu,
    ours: OwnUse,
    baseline: float | None = 0.4,
    before: Gpu | None = None,
    seconds: float = 2.0,
) -> ForeignUse:
    known = None if baseline is None else baseline * GB
    return foreign_use(gpu, before, seconds, ours, IGNORED, known)


def told(gpu: Gpu, ours: OwnUse, baseline: float | None = 0.4) -> list[str]:
    return [reason.text for reason in vram_and_load_reasons(use(gpu, ours, baseline), POLICY)]


def test_a_game_is_named_with_what_it_holds() -> None:
    gpu = card(user("cs2", 5.1), user("python3", 9, pid=OURS, percent=99), used=14.5)
    assert told(gpu, own()) == ["cs2 holds 5.1 GB of GPU 0 (RTX 4090)"]
    (reason,) = vram_and_load_reasons(use(gpu, own()), POLICY)
    assert (reason.code, reason.past) == (
        "foreign-vram",
        "cs2 held 5.1 GB of GPU 0 (RTX 4090)",
    )


def test_a_desktop_and_our_own_worker_are_no_reason() -> None:
    desktop = (user("Xorg", 0.9), user("firefox-bin", 1.9, pid=8, percent=70))
    gpu = card(*desktop, user("python3", 18, pid=OURS, percent=100), used=21.2)
    assert told(gpu, own()) == []
    assert told(card(*desktop, used=3.2), own(running=False)) == []


def test_several_small_users_are_one_big_one() -> None:
    gpu = card(user("blender", 1.0), user("ollama", 1.2, pid=8), user("mpv", 0.2, pid=9), used=2.8)
    assert told(gpu, own(running=False)) == ["ollama and 2 others hold 2.4 GB of GPU 0 (RTX 4090)"]


def test_gpu_time_of_others_counts_and_ours_does_not() -> None:
    gpu = card(
        user("blender", 0.5, percent=31),
        user("python3", 9, pid=OURS, percent=69),
        used=9.9,
        utilisation_percent=100,
    )
    assert told(gpu, own()) == ["blender takes 31% of the time of GPU 0 (RTX 4090)"]
    calm = card(user("blender", 0.5, percent=30), utilisation_percent=100)
    assert told(calm, own()) == []


def test_gpu_time_is_worked_out_from_counters() -> None:
    def at(nanoseconds: int) -> Gpu:
        return card(user("blender", 0.5, percent=None, busy_nanoseconds=nanoseconds), used=0.9)

    before, now = at(5 * 10**9), at(6 * 10**9)
    assert use(now, own(), before=before).percent == 50.0
    assert use(now, own(), before=None).percent == 0.0
    assert use(now, own(), before=before, seconds=float("inf")).percent == 0.0
    assert use(before, own(), before=now).percent == 0.0, "a counter that began anew"


def test_without_a_process_list_totals_tell_while_nothing_of_ours_runs() -> None:
    busy = card(used=9.0, utilisation_percent=80)
    assert told(busy, own(running=False)) == [
        "another program holds 8.6 GB of GPU 0 (RTX 4090)",
        "another program takes 80% of the time of GPU 0 (RTX 4090)",
    ]
    assert told(busy, own(running=False, settling=True)) == [], "a worker of ours is leaving"
    assert told(busy, own(running=False), baseline=None) == [
        "another program takes 80% of the time of GPU 0 (RTX 4090)"
    ]


def test_while_ours_runs_the_plan_is_taken_from_the_total() -> None:
    ours = card(used=9.9, utilisation_percent=100)
    assert told(ours, own(planned=8)) == []
    game = card(used=16.0, utilisation_percent=100)
    (said,) = told(game, own(planned=8))
    assert said.startswith("another program holds 5.3 GB")
    assert told(game, own(planned=None)) == [], "nobody knows how much of it is ours"


def test_a_process_outside_our_container_may_be_our_own() -> None:
    unseen = card(user("", 8, pid=99999), used=8.4)
    assert told(unseen, own(planned=8)) == []
    assert told(unseen, own(running=False)) == ["another program holds 8.0 GB of GPU 0 (RTX 4090)"]


def test_a_process_whose_memory_the_driver_hides_counts_through_the_total() -> None:
    gpu = card(user("game.exe", None), used=9.0)
    assert told(gpu, own(running=False)) == ["another program holds 8.6 GB of GPU 0 (RTX 4090)"]


def test_the_idle_level_is_the_least_seen_and_never_a_game() -> None:
    assert idle_bytes(card(used=12), None) == 3 * GB
    assert idle_bytes(card(used=0.5), 3.0 * GB) == 0.5 * GB
    assert idle_bytes(card(used=2), 0.5 * GB) == 0.5 * GB
    assert idle_bytes(card(user("cs2", 5), used=5.4), None) == pytest.approx(0.4 * GB)
    assert idle_bytes(card(vram_free_bytes=None), None) is None


def test_limits_of_zero_do_not_look() -> None:
    gpu = card(user("cs2", 9, percent=99), used=9.4, temperature_celsius=99)
    nothing = Policy(foreign_vram_mb=0, foreign_gpu_percent=0, max_gpu_celsius=0)
    assert vram_and_load_reasons(use(gpu, own()), nothing) == []
    assert hot_cards((gpu,), nothing, frozenset()) == frozenset()


def test_a_hot_card_must_cool_well_below_the_limit() -> None:
    hot: frozenset[str] = frozenset()
    course = [(86, False), (87, True), (80, True), (78, True), (77, False), (80, False)]
    for celsius, expected in course:
        hot = hot_cards((card(temperature_celsius=celsius),), POLICY, hot)
        assert bool(hot) is expected, celsius
    assert hot_cards((card(temperature_celsius=None),), POLICY, frozenset({"GPU-1"})) == set()
    text = hot_reason(card(temperature_celsius=91), POLICY).text
    assert text == "GPU 0 (RTX 4090) is at 91 °C; the limit is 87, and it must cool to 77"


def test_a_card_that_no_longer_answers_is_told_with_its_driver_s_words() -> None:
    gpu = card()
    known = {card_key(gpu): gpu}
    assert lost_cards(GpuSample(gpus=(gpu,)), known) == []
    fallen = card(uuid="", pci_address="", vram_total_bytes=None, problems=("card: GPU is lost",))
    (reason,) = lost_cards(GpuSample(gpus=(fallen,)), known)
    assert reason.code == "gpu-lost"
    assert reason.text.startswith("GPU 0 (RTX 4090) does not answer: card: GPU is lost. See")
    (reason,) = lost_cards(GpuSample(problem="The NVIDIA driver does not answer. NVML: x"), known)
    assert "NVML: x. See `slidepack doctor`" in reason.text
    (reason,) = lost_cards(GpuSample(), known)
    assert "no longer lists it" in reason.text


def test_the_real_drivers_here_give_cards_or_a_reason() -> None:
    sample = sample_gpus()
    assert sample.gpus == () or all(card_key(gpu) for gpu in sample.gpus)
    assert no_gpus() == GpuSample()
    assert msgspec.json.encode(sample)
