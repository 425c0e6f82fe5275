"""Inverse frequencies against numbers worked out by hand."""

import numpy as np
import pytest

from toolkit.engine.rope import RopeError, inverse_frequencies

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def test_unscaled_frequencies_fall_from_one_by_powers_of_the_base():
    np.testing.assert_allclose(inverse_frequencies(4, 10000.0, None), [1.0, 0.01])


def test_linear_scaling_divides_every_frequency():
    scaling = {"type": "linear", "factor": 4.0}
    np.testing.assert_allclose(inverse_frequencies(4, 10000.0, scaling), [0.25, 0.0025])


def test_llama3_keeps_short_waves_stretches_long_ones_and_blends_between():
    # Wavelengths 2 pi / f of f = 1, 0.1, 0.01, 0.001: 6.28, 62.8, 628, 6283 tokens of 64 trained.
    # 64 / 6.28 = 10.2 > 4: kept. 64 / 62.8 = 1.0186: share (1.0186 - 1) / 3 = 0.0062 kept.
    # The other two are below 1: stretched eightfold.
    share = (64 * 0.1 / (2 * np.pi) - 1) / 3
    blended = (1 - share) * 0.1 / 8 + share * 0.1
    np.testing.assert_allclose(
        inverse_frequencies(8, 10000.0, LLAMA3), [1.0, blended, 0.01 / 8, 0.001 / 8]
    )


def test_an_unknown_type_is_refused_by_name():
    with pytest.raises(RopeError, match=r"'yarn' is not supported.*llama3"):
        inverse_frequencies(8, 10000.0, {"rope_type": "yarn", "factor": 2.0})


def test_a_missing_value_is_named():
    with pytest.raises(RopeError, match="'linear' needs 'factor'"):
        inverse_frequencies(8, 10000.0, {"type": "linear"})
