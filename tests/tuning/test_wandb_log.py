"""Logging to Weights & Biases, on this disk alone."""

import time

import pytest

from tests.tuning.test_results import recipe, results
from toolkit.tuning.output import write_results
from toolkit.tuning.wandb_log import log_to_wandb


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_offline_a_run_with_points_and_files_is_written(tmp_path, monkeypatch):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    found = results()
    files = write_results(tmp_path, found, recipe())
    place = log_to_wandb(found, files, "spectool-test", tmp_path)
    [log] = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert place == str(log.parent)
    wanted = (b"edit/batch_1/speedup", b"tune-r", b"points")
    ends = time.monotonic() + 30  # a process of its own writes, and a busy machine lets it wait
    while not all(word in log.read_bytes() for word in wanted):
        assert time.monotonic() < ends
        time.sleep(0.1)
