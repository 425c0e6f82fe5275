"""`train-head --on ray`: a shard is a step, and waits for the one whose answers it quotes."""

from tests.training.conftest import write_model, write_prompts
from toolkit.data_on_cluster import shard_steps
from toolkit.graph.step import Graph
from toolkit.training.shards import read_shard

SMALL = (
    "--drafter", "eagle3", "--only", "generate", "--sequences", 24, "--heldout", 4, "--shard", 4,
    "--max-tokens", 8, "--generate-batch", 4, "--threads", 1,
)  # fmt: skip


def test_a_shard_waits_for_the_fourth_before_it():
    todo = {"heldout": [0], "train": [1, 2, 5, 6, 9]}
    steps = shard_steps(todo, lambda split, number: {"number": number}, ("/data",))
    graph = Graph(steps)
    before = {step.id: list(step.inputs) for step in graph}
    assert before == {
        "heldout/0": [], "train/1": [], "train/2": [],
        "train/5": ["train/1"], "train/6": ["train/2"], "train/9": ["train/5"],
    }  # fmt: skip
    assert all(step.needs.alone and step.needs.paths == ("/data",) for step in graph)


def test_nodes_fill_the_shards_once_and_a_rerun_finds_them(ray_cluster, spectool, tmp_path):
    write_model(tmp_path / "model")
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "name: tiny\ntarget: {checkpoint: ./model, dtype: float32}\n"
        "speculation: {drafter: ngram}\n"
        "engine: {max_batch_size: 2, max_input_len: 32, max_seq_len: 64}\n",
        encoding="utf-8",
    )
    prompts, out = write_prompts(tmp_path / "prompts"), tmp_path / "out"
    words = ("train-head", recipe, "--prompts", prompts, "-o", out, *SMALL)
    ran = spectool(*words, "--on", f"ray:{ray_cluster.address}")
    assert ran.code == 0, ran.err
    said = [line for line in ran.err.splitlines() if " shard " in line]
    assert len(said) == 7
    assert len({line.rpartition("(")[2] for line in said}) >= 2  # nodes
    shards = sorted((out / "data").glob("*.safetensors"))
    assert [path.name for path in shards] == [
        "heldout-00000.safetensors", *(f"train-{n:05d}.safetensors" for n in range(6)),
    ]  # fmt: skip
    assert all(len(read_shard(path)) == 4 for path in shards)
    here = spectool(*words)  # the same data, whoever made it: nothing is left to do
    assert (here.code, " shard " in here.err) == (0, False)
