"""The decoder as an OpenVINO graph, written layer by layer from a TensorRT-LLM checkpoint.

It has the stateful form (past keys and values in variables) that the paged attention
transformation expects. Shapes: B sequences, S tokens, H hidden, N heads, G key/value heads, D head
size, V vocabulary. Paged, B is the number of tokens in the whole batch and S is 1.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from toolkit.checkpoint.read import D2T
from toolkit.engine.settings import DecoderSettings
from toolkit.engine.weights import Weights

LAYER = "transformer.layers.{i}."


class DecoderGraph:
    """Writes one decoder; `model()` is the whole graph."""

    def __init__(
        self,
        settings: DecoderSettings,
        weights: Weights,
        max_seq_len: int,
        captured: tuple[int, ...] = (),  # layers whose output states are wanted, see `model`
    ) -> None:
        from openvino import opset13

        self.op = opset13
        self.settings = settings
        self.weights = weights
        self.max_seq_len = max_seq_len
        self.captured = captured
        self.zero = opset13.constant(np.int64(0))
        self.ids = self._input("input_ids", [-1, -1], np.int64)  # [B, S]
        self.position_ids = self._input("position_ids", [-1, -1], np.int64)  # [B, S]
        self.attention_mask = self._input("attention_mask", [-1, -1], np.int64)
        self.beam_idx = self._input("beam_idx", [-1], np.int32)
        self.rows = self._input("rows", [-1], np.int32)  # tokens whose logits are wanted: [R]
        self.batch = opset13.gather(opset13.shape_of(self.ids), self._ints(0), self.zero)
        self.cos, self.sin = self._rotation()
        self.assigns: list[Any] = []

    def model(self) -> Any:
        """input_ids -> logits [R, V] of the wanted rows, and captured states [S, C * H] of all.

        Captured are the residual stream after each of C layers, counted from 0, and the states
        after the last norm where a layer's number is the number of layers.
        """
        op = self.op
        embedding = self.weights.embedding()
        x = op.gather(embedding, self.ids, self.zero)  # [B, S, H]
        if self.settings.embedding_scale != 1.0:
            x = op.multiply(x, self._scalar(self.settings.embedding_scale))
        states = []
        for i in range(self.settings.num_layers):
            x = self._layer(x, i)
            states.append(self._flat(x))
        states.append(self._norm(self._flat(x), "transformer.ln_f.weight"))  # [S, H]
        # Only the wanted rows are worth the vocabulary matrix.
        final = op.gather(states[-1], self.rows, self.zero)  # [R, H]
        logits = op.matmul(final, self.weights.lm_head(embedding), False, True)  # [R, V]
        if D2T in self.weights:
            logits = self._spread(logits)
        hidden = op.concat([states[i] for i in self.captured or (len(states) - 1,)], 1)
        return self._whole(logits, hidden)

    def _spread(self, logits: Any) -> Any:
        """[R, D] of a model that says D of the V tokens -> [R, V]: the others' chance is zero."""
        op, ids = self.op, self.weights.said_ids()
        place = np.full(self.settings.vocab_size, len(ids), np.int64)
        place[ids] = np.arange(len(ids))
        never = self._scalar(-np.inf)
        padded = op.pad(logits, self._ints(0, 0), self._ints(0, 1), "constant", never)
        return op.gather(padded, op.constant(place), op.constant(np.int64(1)))

    def _whole(self, logits: Any, hidden: Any, *more_inputs: Any) -> Any:
        """The model of these two outputs."""
        from openvino import Model

        inputs = [self.ids, self.position_ids, self.attention_mask, self.beam_idx, self.rows]
        results = [self._output("logits", logits), self._output("hidden", hidden)]
        model = Model(results, self.assigns, [*inputs, *more_inputs], self.settings.architecture)
        # Names count from the start of the process; the same checkpoint must give the same bytes.
        for number, node in enumerate(model.get_ordered_ops()):
            if node.get_type_name() != "Parameter":
                node.set_friendly_name(f"{node.get_type_name()}_{number}")
        return model

    def _flat(self, x: Any) -> Any:
        """[B, S, H] -> [B * S, H]."""
        return self.op.reshape(x, self._ints(-1, self.settings.hidden_size), False)

    def _layer(self, x: Any, i: int) -> Any:
        op, layer = self.op, LAYER.format(i=i)
        x = op.add(x, self._attention(self._norm(x, layer + "input_layernorm.weight"), i))
        return op.add(x, self._mlp(self._norm(x, layer + "post_layernorm.weight"), layer + "mlp."))

    def _attention(self, x: Any, i: int) -> Any:
        op, s = self.op, self.settings
        name = LAYER.format(i=i) + "attention."
        q, k, v = self._qkv(x, name)  # [B, N or G, S, D]
        q, k = self._rotate(q), self._rotate(k)
        k, v = self._remember(k, i, "key"), self._remember(v, i, "value")
        k, v = self._repeat(k), self._repeat(v)  # [B, N, past + S, D]
        mask = op.unsqueeze(op.convert(self.attention_mask, "f32"), self._ints(1, 2))
        scale = self._scalar(s.head_size**-0.5)
        y = op.scaled_dot_product_attention(q, k, v, mask, scale, False)
        y = op.reshape(
            op.transpose(y, self._ints(0, 2, 1, 3)),
            self._ints(0, 0, s.num_heads * s.head_size),
            True,
        )
        return self._linear(y, name + "dense")

    def _qkv(self, x: Any, name: str) -> list[Any]:
        """Query, key and value by head: the checkpoint keeps the three in one matrix."""
        s = self.settings
        heads = (s.num_heads, s.num_kv_heads, s.num_kv_heads)
        widths = self._ints(*(count * s.head_size for count in heads))
        whole = self._linear(x, name + "qkv")
        parts = self.op.variadic_split(whole, self.op.constant(np.int64(-1)), widths).outputs()
        parts = [self._heads(part, count) for part, count in zip(parts, heads, strict=True)]
        for part, norm in enumerate((name + "q_layernorm.weight", name + "k_layernorm.weight")):
            if norm in self.weights:  # over D: each head by itself
                parts[part] = self._norm(parts[part], norm)
        return [self.op.transpose(part, self._ints(0, 2, 1, 3)) for part in parts]

    def _heads(self, x: Any, count: int) -> Any:
        """[B, S, count * D] -> [B, S, count, D]."""
        return self.op.reshape(x, self._ints(0, 0, count, self.settings.head_size), True)

    def _mlp(self, x: Any, name: str) -> Any:
        # TensorRT-LLM's `fc` is the gate projection, its `gate` the up projection.
        gate = self._activation(self._linear(x, name + "fc"))
        return self._linear(self.op.multiply(gate, self._linear(x, name + "gate")), name + "proj")

    def _activation(self, x: Any) -> Any:
        op = self.op
        return {
            "silu": op.swish,
            "swiglu": op.swish,
            "gelu": lambda y: op.gelu(y, "erf"),
            "gelu_new": lambda y: op.gelu(y, "tanh"),
            "gelu_tanh": lambda y: op.gelu(y, "tanh"),
            "gelu_pytorch_tanh": lambda y: op.gelu(y, "tanh"),
        }[self.settings.activation](x)

    def _linear(self, x: Any, name: str) -> Any:
        op, blocks = self.op, self.weights.summands(name + ".weight")
        parts = [x]
        if len(blocks) > 1:
            widths = self._ints(*(block.get_output_shape(0)[1] for block in blocks))
            parts = op.variadic_split(x, op.constant(np.int64(-1)), widths).outputs()
        products = [op.matmul(p, w, False, True) for p, w in zip(parts, blocks, strict=True)]
        y = reduce(op.add, products)
        if name + ".bias" in self.weights:
            return op.add(y, self.weights.vector(name + ".bias"))
        return y

    def _norm(self, x: Any, name: str) -> Any:
        """RMSNorm over the last dimension, in float32."""
        op = self.op
        mean = op.reduce_mean(op.power(x, self._scalar(2.0)), self._ints(-1), True)
        root = op.sqrt(op.add(mean, self._scalar(self.settings.norm_epsilon)))
        scaled = op.multiply(x, op.divide(self._scalar(1.0), root))
        return op.multiply(self.weights.vector(name), scaled)

    def _rotation(self) -> tuple[Any, Any]:
        """cos and sin of every token's angles [B, 1, S, D].

        Looked up in float32 tables: with a bfloat16 hint, position * frequency would be rounded to
        8 bits before its cosine is taken.
        """
        angles = np.outer(np.arange(self.max_seq_len), self.settings.inv_freq)
        angles = np.concatenate([angles, angles], axis=1)  # [max_seq_len, D]
        cos, sin = (
            self.op.gather(self.op.constant(table.astype(np.float32)), self.position_ids, self.zero)
            for table in (np.cos(angles), np.sin(angles))
        )
        return self.op.unsqueeze(cos, self._ints(1)), self.op.unsqueeze(sin, self._ints(1))

    def _rotate(self, x: Any) -> Any:
        """x * cos + [-second half, first half] * sin.

        In the very form that OpenVINO makes one kernel of (an open end, a last axis of -1): eight
        operations for every layer's queries and keys would take a tenth of a small model's step.
        """
        op, half = self.op, self._ints(self.settings.head_size // 2)
        step, axis, end = self._ints(1), self._ints(3), self._ints(np.iinfo(np.int32).max)
        first = op.slice(x, self._ints(0), half, step, axis)
        last = op.slice(x, half, end, step, axis)
        turned = op.concat([op.multiply(last, self._scalar(-1.0)), first], -1)
        return op.add(op.multiply(x, self.cos), op.multiply(turned, self.sin))

    def _remember(self, x: Any, i: int, kind: str) -> Any:
        """Append to the past; the transformation finds these variables by their names."""
        from openvino import PartialShape, Type
        from openvino.op.util import Variable, VariableInfo

        op, s = self.op, self.settings
        info = VariableInfo()
        info.variable_id = f"past_key_values.{i}.{kind}present.{i}.{kind}"
        info.data_shape = PartialShape([-1, s.num_kv_heads, -1, s.head_size])
        info.data_type = Type.f32
        variable = Variable(info)
        empty = op.concat([self.batch, self._ints(s.num_kv_heads, 0, s.head_size)], 0)
        past = op.read_value(op.broadcast(self._scalar(0.0), empty), variable)
        joined = op.concat([op.gather(past, self.beam_idx, self.zero), x], 2)
        self.assigns.append(op.assign(joined, variable))
        return joined

    def _repeat(self, x: Any) -> Any:
        """[B, G, S, D] -> [B, N, S, D]: every key/value head serves N / G query heads."""
        op, s = self.op, self.settings
        if s.num_heads == s.num_kv_heads:
            return x
        length = op.gather(op.shape_of(x), self._ints(2), self.zero)
        shape = op.concat(
            [
                self.batch,
                self._ints(s.num_kv_heads, s.num_heads // s.num_kv_heads),
                length,
                self._ints(s.head_size),
            ],
            0,
        )
        wide = op.broadcast(op.unsqueeze(x, self._ints(2)), shape, "BIDIRECTIONAL")
        return op.reshape(wide, self._ints(0, s.num_heads, -1, s.head_size), True)

    def _input(self, name: str, shape: list[int], dtype: Any) -> Any:
        node = self.op.parameter(shape, dtype)
        node.set_friendly_name(name)  # the transformation looks for it, not only the tensor's
        node.output(0).get_tensor().set_names({name})
        return node

    def _output(self, name: str, node: Any) -> Any:
        result = self.op.result(node)
        result.output(0).get_tensor().set_names({name})
        return result

    def _ints(self, *values: int) -> Any:
        return self.op.constant(np.array(values, np.int64))

    def _scalar(self, value: float) -> Any:
        return self.op.constant(np.array(value, np.float32))
