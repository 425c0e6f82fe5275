"""Recipes in files."""

import pytest


@pytest.fixture
def write(tmp_path):
    def _write(text, name="r.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return _write
