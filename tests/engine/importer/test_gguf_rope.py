"""Llama 3.1's rotary scaling, read back from the divisors that a GGUF file holds."""

import math

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from slidepack.engine.families.gguf_rope import rope_factors, stretched_rope
from slidepack.engine.families.rope import RopeShape


def rope(**changes: float) -> RopeShape:
    values = {"theta": 500000.0, "factor": 8.0, "original_max_position": 8192} | changes
    return RopeShape(kind="llama3", **values)  # type: ignore[arg-type]


def divisors(shape: RopeShape, head_dim: int) -> np.ndarray:
    """Return what llama.cpp's converter writes: `transformers`' frequencies, turned over."""
    parameters = {
        "rope_type": "llama3",
        "rope_theta": shape.theta,
        "factor": shape.factor,
        "low_freq_factor": shape.low_freq_factor,
        "high_freq_factor": shape.high_freq_factor,
        "original_max_position_embeddings": shape.original_max_position,
    }
    config = LlamaConfig(
        hidden_size=head_dim * 2,
        num_attention_heads=2,
        max_position_embeddings=131072,
        rope_parameters=parameters,
    )
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1.0 / shape.theta ** (np.arange(0, head_dim, 2) / head_dim)
    return np.asarray(plain / frequencies.numpy(), dtype=np.float32)


@pytest.mark.parametrize(
    ("shape", "head_dim"),
    [
        (rope(), 128),
        (rope(factor=32.0), 64),
        (rope(factor=4.0, original_max_position=4096, theta=1e6), 128),
        (rope(high_freq_factor=2.0, original_max_position=32, theta=5000.0, factor=3.0), 48),
        (rope(high_freq_factor=6.5, original_max_position=1000, theta=20000.0), 80),
        (rope(original_max_position=64, theta=5000.0), 12),
    ],
)
def test_parameters_come_back(shape: RopeShape, head_dim: int) -> None:
    written = divisors(shape, head_dim)
    np.testing.assert_allclose(written, rope_factors(shape, head_dim), rtol=1e-5)
    found = stretched_rope(written, shape.theta, head_dim)
    assert found is not None and found.factor == pytest.approx(shape.factor, rel=1e-6)
    assert found.high_freq_factor == pytest.approx(shape.high_freq_factor, rel=1e-3)
    assert found.low_freq_factor == 1.0
    assert found.original_max_position == shape.original_max_position
    np.testing.assert_allclose(rope_factors(found, head_dim), written, rtol=1e-4)


def test_a_common_scale_of_all_three_is_no_difference() -> None:
    double = rope(low_freq_factor=2.0, high_freq_factor=8.0, original_max_position=16384)
    found = stretched_rope(divisors(double, 128), double.theta, 128)
    assert found == rope()


def test_where_nothing_is_blended_any_parameters_of_the_same_effect_do() -> None:
    written = divisors(rope(original_max_position=32, theta=5000.0), 8)
    found = stretched_rope(written, 5000.0, 8)
    assert found is not None
    np.testing.assert_allclose(rope_factors(found, 8), written, rtol=1e-6)


def test_ones_scale_nothing() -> None:
    found = stretched_rope(np.ones(8, np.float32), 10000.0, 16)
    assert found == RopeShape(kind="default", theta=10000.0)


@pytest.mark.parametrize("fault", ["nan", "below", "step", "theta", "infinite"])
def test_what_follows_no_rule(fault: str) -> None:
    written, theta = divisors(rope(), 128), 500000.0
    match fault:
        case "nan":
            written[3] = math.nan
        case "below":
            written[0] = 0.5
        case "step":
            written[40] *= 1.01
        case "theta":
            theta = 40000.0
        case "infinite":
            written[-1] = math.inf
    assert stretched_rope(written, theta, 128) is None
