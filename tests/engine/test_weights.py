"""Weight-only int8 by hand."""

import numpy as np

from toolkit.engine.weights import quantize_rows


def test_a_row_is_scaled_by_its_own_largest_magnitude_over_128():
    matrix = np.array([[-1.28, 0.5, 0.004], [12.8, -6.4, 0.0]], np.float32)
    values, scale = quantize_rows(matrix)
    np.testing.assert_allclose(scale, [[0.01], [0.1]], rtol=1e-6)
    # 0.004 / 0.01 = 0.4 rounds to 0; 12.8 / 0.1 = 128 does not fit and is 127.
    np.testing.assert_array_equal(values, [[-128, 50, 0], [127, -64, 0]])


def test_a_row_of_zeros_stays_zero():
    values, scale = quantize_rows(np.zeros((1, 4), np.float32))
    np.testing.assert_array_equal(values * scale, np.zeros((1, 4)))


def test_no_value_is_off_by_more_than_one_step_and_all_but_the_largest_by_half():
    matrix = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    values, scale = quantize_rows(matrix)
    error = np.abs(values * scale - matrix) / scale
    assert error.max() <= 1 + 1e-4
    assert (error > 0.5 + 1e-4).sum() <= 8
