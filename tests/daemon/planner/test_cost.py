import random

import pytest

from slidepack.daemon.planner.cost import Sample, StepCost, fit, prediction_errors

TRUE = StepCost(floor_seconds=0.08, token_seconds=2e-4, fixed_tokens=100.0, lane_seconds=1e-3)
PRIOR = StepCost(floor_seconds=0.02, token_seconds=5e-4, fixed_tokens=300.0, lane_seconds=2e-4)
GRID = [(64, 1), (128, 2), (256, 4), (512, 1), (1024, 8), (2048, 16), (4096, 4), (8192, 32)]


def _measured(noise: float, seed: int = 0) -> list[Sample]:
    generator = random.Random(seed)
    return [
        Sample(
            tokens=tokens,
            lanes=lanes,
            seconds=TRUE.seconds(tokens, lanes) * generator.uniform(1 - noise, 1 + noise),
        )
        for tokens, lanes in GRID * 3
    ]


def test_a_step_takes_its_floor_and_then_grows_with_its_tokens() -> None:
    assert TRUE.seconds(10, 1) == pytest.approx(0.081)
    assert TRUE.seconds(900, 2) == pytest.approx(0.202)
    assert TRUE.seconds(900, 2, slowdown=1.5) == pytest.approx(0.302)


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_the_fit_predicts_what_was_not_measured(noise: float) -> None:
    found = fit(_measured(noise), PRIOR)
    unseen = [
        Sample(tokens=n, lanes=k, seconds=TRUE.seconds(n, k))
        for n, k in ((96, 3), (700, 5), (3000, 10), (16000, 8))
    ]
    assert max(prediction_errors(found.cost, unseen)) < 0.02 + noise
    assert found.worst_error <= 0.02 + 2 * noise
    assert found.samples == len(GRID) * 3


def test_one_bad_sample_in_ten_changes_little() -> None:
    samples = _measured(0.01)
    spoiled = [
        Sample(tokens=s.tokens, lanes=s.lanes, seconds=s.seconds * (6.0 if i % 10 == 5 else 1.0))
        for i, s in enumerate(samples)
    ]
    clean = [Sample(tokens=n, lanes=k, seconds=TRUE.seconds(n, k)) for n, k in GRID]
    assert max(prediction_errors(fit(spoiled, PRIOR).cost, clean)) < 0.08


def test_samples_of_one_size_scale_the_prior() -> None:
    samples = [Sample(tokens=512, lanes=4, seconds=3.0 * PRIOR.seconds(512, 4))] * 5
    found = fit(samples, PRIOR).cost
    assert found.seconds(4096, 4) == pytest.approx(3.0 * PRIOR.seconds(4096, 4))


def test_a_cost_never_learns_that_tokens_are_free() -> None:
    samples = [Sample(tokens=n, lanes=1, seconds=0.1) for n in (64, 128, 256, 512)]
    found = fit(samples, PRIOR).cost
    assert found.token_seconds > 0.0
    assert max(prediction_errors(found, samples)) < 0.02


def test_nothing_to_fit_and_nonsense_are_refused() -> None:
    with pytest.raises(ValueError, match="no sample"):
        fit([], PRIOR)
    with pytest.raises(ValueError, match="is no step"):
        Sample(tokens=0, lanes=1, seconds=1.0)
    with pytest.raises(ValueError, match="is no cost"):
        StepCost(floor_seconds=0.1, token_seconds=0.0)
