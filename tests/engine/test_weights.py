"""Weight-only int8 by hand, and which projections are summed in blocks."""

import ml_dtypes
import numpy as np
import pytest

from toolkit.engine.weights import Weights, quantize_rows


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


class OneMatrix:
    """A checkpoint of one tensor."""

    def __init__(self, columns, dtype):
        self.matrix = np.arange(2 * columns).reshape(2, columns).astype(dtype)

    def names(self):
        return ["w"]

    def tensor(self, name):
        return self.matrix


@pytest.mark.parametrize(
    ("columns", "dtype", "int8", "widths"),
    [
        (192, np.float32, False, [192]),
        (576, np.float32, False, [192, 192, 192]),
        (200, np.float32, False, [100, 100]),
        (4096, np.float32, False, [512] * 8),
        (576, np.float32, True, [576]),
        (576, np.float16, False, [576]),
        (576, ml_dtypes.bfloat16, False, [576]),
    ],
)
def test_float32_products_are_added_in_blocks(columns, dtype, int8, widths):
    made = OneMatrix(columns, dtype)
    blocks = Weights(made, int8=int8).summands("w")
    assert [list(block.get_output_shape(0)) for block in blocks] == [[2, w] for w in widths]
    if dtype == np.float32 and not int8:
        whole = np.concatenate([block.get_data() for block in blocks], axis=1)
        np.testing.assert_array_equal(whole, made.matrix)
