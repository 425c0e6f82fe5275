"""The recipe's decision for other servers: one file a server, its documented options as a table."""

from __future__ import annotations

from toolkit.registry import Registry

PEERS = Registry(
    "server",
    {
        "vllm": "toolkit.export.vllm:Vllm",
        "sglang": "toolkit.export.sglang:Sglang",
        "tgi": "toolkit.export.tgi:Tgi",
        "llama.cpp": "toolkit.export.llama_cpp:LlamaCpp",
        "openvino": "toolkit.export.openvino:OpenVino",
    },
)
