"""The house rules that a reader relies on: one direction of imports, files that fit in the head."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "toolkit"
# Lowest first; a part may import itself and what stands before it.
ORDER = [
    "roots", "recipe", "speculation", "checkpoint", "engine", "backends",
    "measure", "training", "graph", "tuning", "serving", "plan", "commands", "cli",
]  # fmt: skip
# What is done with a plan stands beside it.
PLANNING = {
    "execute",
    "steps",
    "tuning_steps",
    "expected",
    "on_cluster",
    "data_on_cluster",
    "preflight",
    "migrate",
    "export",
}
HEAVY = {
    "torch", "transformers", "tensorrt_llm", "tensorrt", "openvino", "tritonclient", "plotly",
    "ray", "wandb", "huggingface_hub", "gguf", "rich", "tokenizers", "jinja2",
    "fsspec", "s3fs", "gcsfs", "aiohttp", "botocore", "minisign", "llguidance",
}  # fmt: skip
MAX_LINES = 400
SOURCES = sorted(PACKAGE.rglob("*.py"))


def part_of(module: str) -> str:
    """`toolkit.engine.build` -> `engine`; a module directly in the package is a root."""
    pieces = module.split(".")
    name = pieces[1] if len(pieces) > 1 else ""
    if name in PLANNING:
        return "plan"
    return name if name in ORDER else "roots"


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )


def imports(tree: ast.AST) -> list[tuple[str, int]]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.module, node.lineno))
    return found


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_imports_point_one_way(path):
    here = ORDER.index(part_of(module_of(path)))
    wrong = [
        f"line {line}: imports {name}"
        for name, line in imports(ast.parse(path.read_text(encoding="utf-8")))
        if name.startswith("toolkit.") and ORDER.index(part_of(name)) > here
    ]
    assert wrong == []


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_heavy_packages_load_inside_the_function_that_needs_them(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    top = [node for node in tree.body if id(node) not in typing_only]
    names = [
        name
        for node in top
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name, _ in imports(node)
    ]
    assert [name for name in names if name.partition(".")[0] in HEAVY] == []


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_files_fit_in_the_head(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_every_module_says_what_lives_there(path):
    text = path.read_text(encoding="utf-8")
    assert not text.strip() or ast.get_docstring(ast.parse(text))


def test_no_utils_drawer():
    drawers = {"utils", "util", "common", "helpers", "misc"}
    assert [path for path in SOURCES if path.stem in drawers or path.parent.name in drawers] == []
