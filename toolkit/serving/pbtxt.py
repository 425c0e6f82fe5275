"""config.pbtxt as protobuf: built from a contract, printed and parsed by `text_format`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.optional import require
from toolkit.serving.contract import Contract, Tensor

ModelConfig = Any  # tritonclient.grpc.model_config_pb2.ModelConfig, which carries no types


def schema() -> Any:
    """The module of generated protobuf classes, `model_config_pb2`."""
    return require(
        "tritonclient.grpc.model_config_pb2", extra="triton", why="reading and writing config.pbtxt"
    )


@dataclass(frozen=True, slots=True)
class Queue:
    """Requests that Triton itself holds back for a backend that takes several at once."""

    max_size: int  # 0: any number
    max_delay_microseconds: int


def model_config(
    name: str,
    contract: Contract,
    parameters: Mapping[str, str],
    *,
    max_batch_size: int,
    backend: str = "python",
    instances: int = 1,
    queue: Queue | None = None,
) -> ModelConfig:
    """A model wired as its contract says. KIND_CPU also where a backend chooses its GPUs itself."""
    config = schema().ModelConfig(name=name, backend=backend, max_batch_size=max_batch_size)
    if contract.decoupled:
        config.model_transaction_policy.decoupled = True
    if queue:
        batching = config.dynamic_batching
        batching.preferred_batch_size.append(max_batch_size)
        batching.max_queue_delay_microseconds = queue.max_delay_microseconds
        batching.default_queue_policy.max_queue_size = queue.max_size
    _add_tensors(config, contract)
    config.instance_group.add(count=instances, kind=schema().ModelInstanceGroup.KIND_CPU)
    _add_parameters(config, contract, parameters)
    return config


def ensemble_config(
    name: str,
    contract: Contract,
    steps: Sequence[tuple[str, Mapping[str, str], Mapping[str, str]]],
    *,
    max_batch_size: int,
) -> ModelConfig:
    """An ensemble of (model, its input -> our tensor, its output -> our tensor) steps."""
    config = schema().ModelConfig(name=name, platform="ensemble", max_batch_size=max_batch_size)
    _add_tensors(config, contract)
    for model, inputs, outputs in steps:
        step = config.ensemble_scheduling.step.add(model_name=model, model_version=-1)
        step.input_map.update(inputs)
        step.output_map.update(outputs)
    return config


def to_text(config: ModelConfig) -> str:
    from google.protobuf import text_format

    return str(text_format.MessageToString(config))


def parse(text: str) -> ModelConfig:
    """Raises `text_format.ParseError`, which knows line and column."""
    from google.protobuf import text_format

    return text_format.Parse(text, schema().ModelConfig())


def map_keys(text: str) -> dict[str, list[str]]:
    """Every key of `parameters` and of the ensemble's maps as written, repetitions included.

    Protobuf keeps the last of equal map keys without a word. Parsed with a copy of the schema in
    which maps are plain lists, all of them are there.
    """
    from google.protobuf import text_format

    config = text_format.Parse(text, _schema_without_maps()())
    keys = {"parameters": [entry.key for entry in config.parameters]}
    for number, step in enumerate(config.ensemble_scheduling.step, 1):
        keys[f"step {number} input_map"] = [entry.key for entry in step.input_map]
        keys[f"step {number} output_map"] = [entry.key for entry in step.output_map]
    return keys


def dtype_name(data_type: int) -> str:
    """`INT32` for TYPE_INT32."""
    return str(schema().DataType.Name(data_type)).removeprefix("TYPE_")


def parameters_of(config: ModelConfig) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


def _add_tensors(config: ModelConfig, contract: Contract) -> None:
    for tensor in contract.inputs:
        added = _add_tensor(config.input, tensor)
        added.optional = tensor.optional
        added.allow_ragged_batch = tensor.ragged
    for tensor in contract.outputs:
        _add_tensor(config.output, tensor)


def _add_tensor(tensors: Any, tensor: Tensor) -> Any:
    data_type = schema().DataType.Value(f"TYPE_{tensor.dtype}")
    added = tensors.add(name=tensor.name, data_type=data_type, dims=tensor.dims)
    if tensor.reshape:
        added.reshape.SetInParent()  # an empty shape: the scalar of the contract
    return added


def _add_parameters(config: ModelConfig, contract: Contract, parameters: Mapping[str, str]) -> None:
    """Strict in both directions: what the contract requires is given, what is given is known."""
    known = {parameter.name for parameter in contract.parameters}
    required = {parameter.name for parameter in contract.parameters if parameter.required}
    unknown, missing = set(parameters) - known, required - set(parameters)
    if unknown or missing:
        raise ValueError(f"{config.name}: unknown {sorted(unknown)}, missing {sorted(missing)}")
    for key, value in parameters.items():
        config.parameters[key].string_value = value


def _schema_without_maps() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto()
    schema().DESCRIPTOR.CopyToProto(file)
    for nested in _nested(file.message_type):
        nested.options.ClearField("map_entry")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"{file.package}.ModelConfig")
    )


def _nested(messages: Any) -> list[Any]:
    found = []
    for message in messages:
        found += [message, *_nested(message.nested_type)]
    return found
