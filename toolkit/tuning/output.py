"""The results directory: one writer at a time, and every file whole or absent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock, Timeout

from toolkit.errors import InputError
from toolkit.recipe.schema import Recipe
from toolkit.store import write_atomic
from toolkit.tuning.compare import Comparison
from toolkit.tuning.markdown import summary_md
from toolkit.tuning.report import report_html
from toolkit.tuning.results import Results, to_csv, to_json
from toolkit.tuning.tuned_recipe import tuned_yaml


@contextmanager
def results_directory(path: Path) -> Iterator[Path]:
    """The directory, made if need be and held against a second run."""
    lock = FileLock(path / ".lock", timeout=0)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise InputError(
            f"{path}: another spectool tune is writing here; wait for it, or use another --out DIR"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: cannot write results here: {error.strerror}") from None
    try:
        yield path
    finally:
        lock.release()


def write_results(
    directory: Path, results: Results, original: Recipe, comparison: Comparison | None = None
) -> dict[str, Path]:
    """Name -> path of what was written; report.html is missing where plotly is not installed."""
    texts = {
        "results.json": to_json(results, comparison),
        "summary.md": summary_md(results, comparison),
        "records.csv": to_csv(results),
        "tuned.yaml": tuned_yaml(original, results),
    }
    if find_spec("plotly"):
        texts["report.html"] = report_html(results)
    for name, text in texts.items():
        write_atomic(directory / name, text)
    return {name: directory / name for name in texts}
