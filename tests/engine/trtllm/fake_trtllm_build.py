"""A stand-in for trtllm-build: as strict about its arguments as the golden parser table of its
release, it writes a directory like the golden engines, or fails in a way of choice.

It is started as a program of its own (see `FakeInstallation`), never imported by spectool.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

GOLDEN = Path(__file__).parents[2] / "golden"
MODES = {
    None: 1, "draft_tokens_external": 2, "medusa": 4, "lookahead_decoding": 8,
    "explicit_draft_tokens": 16, "eagle": 32,
}  # fmt: skip


def main(version: str) -> int:
    from tests.engine.trtllm.golden_flags import parse

    calls = Path(os.environ["FAKE_CALLS"])
    with calls.open("a") as file:
        file.write(
            json.dumps({"argv": sys.argv[1:], "gpus": os.environ["CUDA_VISIBLE_DEVICES"]}) + "\n"
        )
    print(f"[TensorRT-LLM] TensorRT-LLM version: {version}", flush=True)
    try:
        arguments = parse(sys.argv[1:], version)
    except ValueError as error:
        print(f"trtllm-build: error: {error}", file=sys.stderr)
        return 2
    return behaviour(os.environ.get("FAKE_MODE", "ok"))(arguments, version)


def behaviour(mode: str):
    if mode == "told":  # by a file beside the calls, for nodes whose environment stands
        told = Path(os.environ["FAKE_CALLS"]).with_name("mode")
        mode = told.read_text() if told.exists() else "paced"
    return {
        "ok": build,
        "slow": slow,
        "paced": paced,
        "noisy": noisy,
        "half": half,
        "other": other,
    }.get(mode, misbehave)


def build(arguments: dict, version: str) -> int:
    checkpoint, out = Path(arguments["checkpoint_dir"]), Path(arguments["output_dir"])
    pretrained = json.loads((checkpoint / "config.json").read_text())
    template = json.loads((GOLDEN / "engine016_draft.json").read_text())["config"]
    made = template["build_config"] | sizes(arguments, version, pretrained)
    made["plugin_config"]["use_paged_context_fmha"] = (
        arguments.get("use_paged_context_fmha", "enable") == "enable"
    )
    out.mkdir(parents=True, exist_ok=True)
    for rank in range(pretrained["mapping"]["world_size"]):
        print(f"Building rank {rank}", flush=True)
        (out / f"rank{rank}.engine").write_bytes(b"ftrt" + bytes(60))
    config = {"version": version, "pretrained_config": pretrained, "build_config": made}
    (out / "config.json").write_text(json.dumps(config))
    Path(arguments["output_timing_cache"]).write_bytes(b"timing")
    return 0


def sizes(arguments: dict, version: str, pretrained: dict) -> dict:
    """The arithmetic of contracts R4 to R7, written down a second time."""
    mode, batch = arguments.get("speculative_decoding_mode"), arguments["max_batch_size"]
    drafted = arguments.get("max_draft_len", 0)
    seq, tokens = arguments["max_seq_len"], arguments.get("max_num_tokens", 8192)
    if "redrafter_num_beams" in pretrained:
        drafted = pretrained["redrafter_num_beams"] * pretrained["redrafter_draft_len_per_beam"]
        mode = "explicit_draft_tokens"
    elif "max_draft_len" in pretrained and (version.startswith("0.16") or not drafted):
        drafted = pretrained["max_draft_len"]
    tokens = min(tokens, seq * batch)
    if mode:
        seq += drafted + (pretrained["num_eagle_layers"] if mode == "eagle" else 0)
        tokens = max(tokens, batch * (drafted + 1))
    return {
        "max_batch_size": batch,
        "max_input_len": arguments["max_input_len"],
        "max_seq_len": seq,
        "max_num_tokens": tokens,
        "max_draft_len": drafted,
        "speculative_decoding_mode": MODES[mode],
        "gather_generation_logits": arguments.get("gather_generation_logits", False),
    }


def slow(arguments: dict, version: str) -> int:
    """Long enough that a second build meets the first."""
    time.sleep(1.5)
    return build(arguments, version)


def paced(arguments: dict, version: str) -> int:
    """As long as the weights are large: seconds a megabyte stand in a file beside the calls."""
    pace = float(Path(os.environ["FAKE_CALLS"]).with_name("pace").read_text())
    weights = Path(arguments["checkpoint_dir"]).glob("*.safetensors")
    time.sleep(pace * sum(file.stat().st_size for file in weights) / 1e6)
    return build(arguments, version)


def noisy(arguments: dict, version: str) -> int:
    """More output than any pipe holds, some of it no text."""
    for _ in range(64):
        sys.stdout.buffer.write(b"\xff\x1b[0m weight tactics \n" * 4096)
    sys.stdout.flush()
    return build(arguments, version)


def half(arguments: dict, version: str) -> int:
    """Ends well without its last rank."""
    build(arguments, version)
    sorted(Path(arguments["output_dir"]).glob("*.engine"))[-1].unlink()
    return 0


def other(arguments: dict, version: str) -> int:
    """Ends well with another engine than asked for."""
    return build({**arguments, "max_seq_len": 17}, version)


def misbehave(arguments: dict, version: str) -> int:
    mode = os.environ["FAKE_MODE"]
    out = Path(arguments["output_dir"])
    out.mkdir(parents=True, exist_ok=True)
    (out / "rank0.engine").write_bytes(b"half")
    if mode == "hang":
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(os.environ["FAKE_CALLS"]).with_name("pids").write_text(f"{os.getpid()} {worker.pid}")
        print("Total timing cache: waiting", flush=True)
        time.sleep(600)
    if mode == "killed":
        os.kill(os.getpid(), 9)
    print(mode, file=sys.stderr)  # a message to fail with
    return 1
