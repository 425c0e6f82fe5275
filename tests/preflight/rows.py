"""For every check fixtures that it passes, and broken ones with what is said about them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from tests import tiny_heads as heads
from tests.preflight.lab import TREE, Lab
from tests.tiny import HIDDEN, LLAMA3_ROPE, VOCAB

Change = Callable[[Lab], Lab]
V016 = "0.16.0"
TREE_OF_63 = "medusa/mc_sim_7b_63"


def old(lab: Lab) -> Lab:
    """For the engines of 0.16 in the golden files."""
    return lab.set("tensorrt_llm", V016)


def pair(lab: Lab, *, target: Any = None, draft: Any = None) -> Lab:
    """Two golden engines that work together, but for what the two functions change."""
    lab = old(lab.draft())
    lab = lab.engine("engine016_dtarget", change=target)
    return lab.engine("engine016_draft", "draft", change=draft)


def set_in(section: str, **values: Any) -> Callable[[dict[str, Any]], None]:
    def change(config: dict[str, Any]) -> None:
        holder = config
        for key in section.split("."):
            holder = holder[key]
        holder.update(values)

    return change


def tokens(lab: Lab, role: str, change: Callable[[dict[str, Any]], None]) -> Lab:
    """Edit tokenizer.json of a model that is there."""
    path = lab.folder / role / "tokenizer.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    change(found)
    path.write_text(json.dumps(found), encoding="utf-8")
    return lab


def tokenizer_config(lab: Lab, role: str, **values: Any) -> Lab:
    path = lab.folder / role / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values), encoding="utf-8")
    return lab


def without(tensors: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in tensors.items() if name not in names}


def swap(tokenizer: dict[str, Any]) -> None:
    ids = tokenizer["model"]["vocab"]
    ids["!"], ids["#"] = ids["#"], ids["!"]


def special_tokens(tokenizer: dict[str, Any]) -> None:
    """What a vocabulary loses when it is counted without its added tokens."""
    for number in range(2):
        tokenizer["added_tokens"].append(
            {"id": VOCAB + number, "content": f"<|role_{number}|>", "single_word": False,
             "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        )  # fmt: skip


def repository(lab: Lab, text: str) -> Lab:
    """A Triton repository of one identity model."""
    model = lab.folder / "repository" / "copy"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text("class TritonPythonModel: ...\n", encoding="utf-8")
    (model / "config.pbtxt").write_text(text, encoding="utf-8")
    return lab.with_options("--repo", str(lab.folder / "repository"))


def chat_tokens(tokenizer: dict[str, Any]) -> None:
    """The last two ids become special tokens of a chat template, as in Llama 3."""
    vocab = tokenizer["model"]["vocab"]
    for name in [name for name, index in vocab.items() if index >= VOCAB]:
        del vocab[name]
    special_tokens(tokenizer)


def grammar(lab: Lab, **options: Any) -> Lab:
    """On the backend that has grammars of its own."""
    return lab.set("backend", "cpu").set("guided_decoding", options)


def remove_rank(lab: Lab, name: str) -> Lab:
    lab = lab.engine("engine016_llama_tp2")
    (lab.folder / "engines" / "target" / name).unlink()
    return lab


COPY = """name: "copy"
backend: "python"
max_batch_size: 4
input [{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }]
"""

GOOD: dict[str, Change] = {
    "a grammar": lambda lab: grammar(lab, guide_type="regex", guide="(yes|no)+"),
    "a schema as YAML": lambda lab: grammar(lab, guide={"type": "object"}),
    "any JSON": lambda lab: grammar(lab, guide_type="json"),
    "P1 ngram": lambda lab: lab,
    "P1 medusa on the last release with engines": lambda lab: lab.medusa(),
    "P1 medusa on qwen 2": lambda lab: lab.model("target", "qwen2").medusa(),
    "P1 redrafter": lambda lab: lab.redrafter(),
    "P1 lookahead": lambda lab: lab.set("speculation", {"drafter": "lookahead"}),
    "P1 weight only on hopper": lambda lab: lab.draft()
    .set("target.quantization", "w8a16")
    .set("tensorrt.gpu", "H100"),
    "P2 P6 P9 two golden engines": pair,
    "P2 a golden medusa engine": lambda lab: old(lab.medusa()).engine("engine016_medusa"),
    "P2 a golden eagle engine": lambda lab: old(lab.eagle()).engine("engine016_eagle"),
    "P2 P6 engines like those of 1.2": lambda lab: lab.draft().engine("engine12like_target"),
    "P2 P6 an eagle engine like those of 1.2": lambda lab: lab.eagle().engine("engine12like_eagle"),
    "P2 a tree as deep as the heads": lambda lab: lab.medusa(heads.medusa(heads=2)),
    "P3 rows that only pad": lambda lab: lab.draft(vocab_size=VOCAB + 6),
    "P4 heads without fc.bias": lambda lab: lab.eagle(heads.eagle(bias=False)),
    "P4 a tied lm_head": lambda lab: lab.model("target", tie_word_embeddings=True).medusa(),
    "P5 eagle": lambda lab: lab.eagle(),
    "P5 llama 3 rope in both": lambda lab: lab.model("target", rope_scaling=LLAMA3_ROPE).eagle(
        config=heads.eagle_config(rope_scaling=LLAMA3_ROPE)
    ),
    "P7 a repository": lambda lab: repository(lab, COPY),
    "P8 a GPU by name": lambda lab: lab.draft().with_options("--gpu", "h100"),
    "P8 a GPU by size": lambda lab: lab.draft().with_options("--gpu-memory", "8"),
    "P9 two ranks": lambda lab: old(lab.eagle(max_draft_len=31, num_eagle_layers=2,
                                              eagle_choices=TREE))
    .set("target.parallel", {"tp": 2})
    .engine("engine016_eagle_tp2"),
}  # fmt: skip

BROKEN: dict[str, tuple[Change, str]] = {
    "a grammar that does not compile": (
        lambda lab: grammar(lab, guide_type="regex", guide="(yes|no"),
        "guided_decoding: regex guide: at 1(8): invalid regex",
    ),
    "a grammar that allows nothing": (
        lambda lab: grammar(lab, guide={"type": "integer", "minimum": 5, "maximum": 3}),
        "guided_decoding: json_schema guide: Unsatisfiable schema: minimum (5) is greater",
    ),
    "a grammar's file that is not there": (
        lambda lab: grammar(lab, guide_file="no.json"),
        "no.json: not readable as UTF-8 text",
    ),
    "a grammar twice": (
        lambda lab: grammar(lab, guide="{}", guide_file="no.json"),
        "guided_decoding: give the grammar with either guide or guide_file",
    ),
    "a grammar for a server that takes one with each request": (
        lambda lab: lab.set("guided_decoding", {"guide_type": "json"}),
        "guided_decoding: Triton takes a grammar with each request (guided_decoding_guide)",
    ),
    "P1 no engines after 1.2": (
        lambda lab: lab.medusa().set("tensorrt_llm", "1.3.0"),
        "tensorrt_llm: 1.3.0: the engine flow ended with TensorRT-LLM 1.2",
    ),
    "P1 medusa on fp8": (
        lambda lab: lab.medusa().set("target.quantization", "fp8"),
        "target.quantization: 'fp8'; TensorRT-LLM fails to build medusa heads on a quantised",
    ),
    "P1 weight-only medusa": (
        lambda lab: lab.medusa().set("target.quantization", "w8a16"),
        "target.quantization: 'w8a16'",
    ),
    "P1 eagle on qwen 2": (
        lambda lab: lab.model("target", "qwen2").eagle(),
        "exist for LlamaForCausalLM, MistralForCausalLM; the target is Qwen2ForCausalLM",
    ),
    "P1 redrafter on qwen 2 before 1.0": (
        lambda lab: old(lab.model("target", "qwen2").redrafter()),
        "the target is Qwen2ForCausalLM",
    ),
    "P1 qwen 3 before 1.0": (lambda lab: old(lab.model("target", "qwen3")), "it came with 1.0"),
    "P1 an eagle-3 head in an engine": (
        lambda lab: lab.eagle(heads.eagle3(), heads.eagle3_config()),
        "is an EAGLE-3 head",
    ),
    "P1 drafter eagle3 in an engine": (
        lambda lab: lab.set(
            "speculation", {"drafter": "eagle3", "heads": {"checkpoint": "./heads"}}
        ),
        "use backend: pytorch",
    ),
    "P1 weight-only on blackwell": (
        lambda lab: lab.set("target.quantization", "w8a16").set("tensorrt.gpu", "B200"),
        "W8A16 is refused on Blackwell (sm_100)",
    ),
    "P1 a GPU that is too old": (lambda lab: lab.set("tensorrt.gpu", "V100"), "needs sm_80"),
    "P1 a key of an older release": (
        lambda lab: lab.medusa(speculative_model_dir="./heads"),
        "unknown key; a recipe says it in speculation.heads.checkpoint",
    ),
    "P1 a removed flag": (
        lambda lab: lab.set("tensorrt.flags", {"auto_parallel": 2}),
        "tensorrt.flags.auto_parallel",
    ),
    "P2 a target engine without draft tokens": (
        lambda lab: old(lab.draft()).engine("engine016_draft"),
        "max_draft_len is 0, the recipe drafts up to 10",
    ),
    "P2 a target engine without the mode": (
        lambda lab: old(lab.draft()).engine("engine016_draft"),
        "--speculative_decoding_mode draft_tokens_external --max_draft_len 10",
    ),
    "P2 an engine that drafts less": (
        lambda lab: pair(lab).set("speculation.max_draft_len", 12),
        "max_draft_len is 10, the recipe drafts up to 12",
    ),
    "P2 a medusa engine without the mode": (
        lambda lab: old(lab.medusa()).engine("engine016_medusa_nomode"),
        "speculative_decoding_mode is none, drafter medusa needs medusa",
    ),
    "P2 an engine of smaller batches": (
        lambda lab: pair(lab.set("engine.max_batch_size", 64)),
        "max_batch_size is 4, engine.max_batch_size of the recipe is 64",
    ),
    "P2 an engine of another release": (
        lambda lab: lab.draft().engine("engine016_dtarget"),
        "built by TensorRT-LLM 0.16.0.dev2024121000, the recipe says 1.2.1",
    ),
    "P2 a tree deeper than the heads": (
        lambda lab: lab.medusa(
            heads.medusa(heads=2), medusa_choices=[[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]
        ),
        "depth 4, but medusa heads in the file: 2",
    ),
    "P2 a tree without a parent": (
        lambda lab: lab.medusa(medusa_choices=[[0], [1, 0]]),
        "paths whose parent is missing: [1, 0]",
    ),
    "P2 a tree of more nodes": (
        lambda lab: lab.medusa(medusa_choices=TREE_OF_63, max_draft_len=31),
        "63 nodes, max_draft_len is 31",
    ),
    "P2 lookahead of another formula": (
        lambda lab: lab.set("speculation", {"drafter": "lookahead", "max_draft_len": 63}),
        "need 83",
    ),
    "P2 an engine role that is not there": (
        lambda lab: old(lab).engine("engine016_draft", "draft"),
        "this recipe has no such model; it has target",
    ),
    "P3 two tokens swapped": (
        lambda lab: tokens(lab.draft(), "draft", swap),
        "2 of 250 token ids differ",
    ),
    "P3 a draft without the added tokens": (
        lambda lab: tokens(
            lab.model("target", vocab_size=VOCAB + 2).draft(), "target", chat_tokens
        ),
        "token ids are only in one of the two: 250 '<|role_0|>', 251 '<|role_1|>'",
    ),
    "P3 another end of text": (
        lambda lab: tokenizer_config(lab.draft(eos_token_id=0), "draft", eos_token="<s>"),
        "end of text is [1] in one and [0] in the other",
    ),
    "P3 more tokens than rows": (
        lambda lab: tokens(lab.model("target"), "target", special_tokens),
        "target tokenizer: has 252 tokens, the model only 250",
    ),
    "P3 logits of another width": (
        lambda lab: lab.draft(vocab_size=VOCAB + 6).set("speculation.use_draft_logits", True),
        "the draft's logits are 256 wide, the target's 250",
    ),
    "P4 a target without a norm": (
        lambda lab: lab.tensors("target", lambda found: found.pop("model.norm.weight")),
        "model.norm.weight: missing; expected shape [64]",
    ),
    "P4 a tensor left over": (
        lambda lab: lab.tensors("target", lambda found: found.update(extra=np.zeros(1, "f4"))),
        "extra: unexpected",
    ),
    "P4 no lm_head although untied": (
        lambda lab: lab.tensors("target", lambda found: found.pop("lm_head.weight")),
        "lm_head.weight: missing",
    ),
    "P4 fewer heads than the recipe uses": (
        lambda lab: lab.medusa(heads.medusa(heads=3), num_medusa_heads=5),
        "holds 3 Medusa head(s), the recipe's num_medusa_heads is 5",
    ),
    "P4 a head without a tensor": (
        lambda lab: lab.eagle(without(heads.eagle(), "layers.0.mlp.up_proj.weight")),
        "layers.0.mlp.up_proj.weight: missing; expected shape [128, 64]",
    ),
    "P4 no weights at all": (
        lambda lab: lab.named_heads("medusa", medusa_choices=TREE),
        "heads",
    ),
    "P5 heads of another hidden size": (
        lambda lab: lab.medusa(heads.medusa() | {"0.0.linear.weight": np.zeros((32, 32), "f2")}),
        "0.0.linear.weight: has shape [32, 32], expected [64, 64] for this target",
    ),
    "P5 heads of another vocabulary": (
        lambda lab: lab.medusa(heads.medusa() | {"2.1.weight": np.zeros((256, HIDDEN), "f2")}),
        "2.1.weight: has shape [256, 64], expected [250, 64] for this target",
    ),
    "P5 a head of another rope": (
        lambda lab: lab.eagle(config=heads.eagle_config(rope_theta=500000.0)),
        "rope_theta 500000.0, the target's is 10000.0",
    ),
    "P5 a head whose config.json says other sizes": (
        lambda lab: lab.eagle(config=heads.eagle_config(hidden_size=128)),
        "config.json: hidden_size 128, the target's is 64",
    ),
    "P6 no paged context FMHA in the target": (
        lambda lab: pair(
            lab, target=set_in("build_config.plugin_config", use_paged_context_fmha=False)
        ),
        "use_paged_context_fmha is False, drafter draft_target needs it in the target engine",
    ),
    "P6 no paged context FMHA in the draft": (
        lambda lab: pair(
            lab, draft=set_in("build_config.plugin_config", use_paged_context_fmha=False)
        ),
        "needs it in the draft engine (KV blocks cannot be reused without it)",
    ),
    "P6 no paged context FMHA in the recipe": (
        lambda lab: lab.draft().set("tensorrt.flags", {"use_paged_context_fmha": "disable"}),
        "tensorrt.flags.use_paged_context_fmha",
    ),
    "P6 no generation logits in one": (
        lambda lab: pair(
            lab, draft=set_in("build_config", gather_generation_logits=False)
        ).set("speculation.use_draft_logits", True),
        "gather_generation_logits is False, drafter draft_target needs it in the draft engine",
    ),
    "P6 logits of different types": (
        lambda lab: pair(lab, draft=set_in("pretrained_config", logits_dtype="float16")),
        "logits_dtype is float16, the target engine's is float32",
    ),
    "P6 a continuous KV cache": (
        lambda lab: pair(lab, draft=set_in("build_config", kv_cache_type="CONTINUOUS")),
        "kv_cache_type is CONTINUOUS",
    ),
    "P6 different releases": (
        lambda lab: pair(lab, draft=lambda config: config.update(version="0.17.0")),
        "version is 0.17.0, the target engine's is 0.16.0.dev2024121000",
    ),
    "P7 a placeholder left over": (
        lambda lab: repository(lab, COPY.replace("TYPE_FP32", "${logits_datatype}", 1)),
        "config.pbtxt",
    ),
    "P7 a model of another name": (
        lambda lab: repository(lab, COPY.replace('"copy"', '"other"')),
        "other",
    ),
    "P7 no repository there": (
        lambda lab: lab.with_options("--repo", str(lab.folder / "nowhere")),
        "nowhere",
    ),
    "P8 weights that do not fit": (
        lambda lab: lab.draft().with_options("--gpu-memory", "1"),
        "the GPU has 1.0 GiB; raise parallel.tp",
    ),
    "P8 no sequence fits": (
        lambda lab: lab.model("target", max_position_embeddings=10**6)
        .set("engine.max_seq_len", 900_000)
        .set("engine.max_num_tokens", 256)
        .with_options("--gpu-memory", "1.05"),
        "hold no sequence of engine.max_seq_len 900000",
    ),
    "P8 a GPU that nobody knows": (
        lambda lab: lab.with_options("--gpu", "h1000"),
        "unknown GPU 'h1000'; did you mean 'H100'?",
    ),
    "P9 an engine for two GPUs": (
        lambda lab: old(lab.eagle(max_draft_len=31, num_eagle_layers=2, eagle_choices=TREE)).engine(
            "engine016_eagle_tp2"
        ),
        "mapping.tp_size is 2, parallel.tp of the target is 1",
    ),
    "P9 half of the ranks": (
        lambda lab: remove_rank(old(lab.set("target.parallel", {"tp": 2})), "rank1.engine"),
        "rank1.engine: missing; world_size is 2",
    ),
    "P9 a draft on other GPUs": (
        lambda lab: lab.draft()
        .set("target.parallel", {"tp": 4})
        .set("speculation.draft.parallel", {"tp": 2}),
        "the draft runs on one GPU or on all of the target's (1 or 4)",
    ),
    "P9 pipeline stages": (
        lambda lab: lab.set("target.parallel", {"pp": 2}),
        "speculative decoding has no pipeline parallelism",
    ),
    "P9 KV heads that do not split": (
        lambda lab: lab.model("target", num_attention_heads=6, num_key_value_heads=2, head_dim=16)
        .set("target.parallel", {"tp": 3}),
        "parallel.tp 3: must divide num_key_value_heads 2 or be a multiple of it",
    ),
}  # fmt: skip
