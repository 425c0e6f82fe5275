"""What every kind of head answers, so that one loop can train it.

B sequences, R rows (see batches.py), D draft vocabulary, V target vocabulary, H hidden.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from toolkit.training.batches import Batch
from toolkit.training.target import Target

if TYPE_CHECKING:
    import torch

    Params = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """Choices of a head's shape; what a kind does not have it does not read."""

    draft_vocab: int | None = None  # None: the target's whole vocabulary
    dropout: float = 0.1  # EAGLE: of what the layer reads and adds, while it is trained
    hard: float = 0.3  # share of the target's most likely token in what is learnt, 0..1
    heads: int | None = None  # Medusa: how many; None: 4, or as the head that it begins from
    head_layers: int | None = None  # Medusa: residual layers of each; None: 1, or as that head
    layers: tuple[int, ...] = ()  # a draft model: which of the target's
    reduced: bool = False  # a draft model: it says the tokens of `draft_vocab` only
    layer_names: str = "midlayer."  # EAGLE-3: midlayer. or layers.0.
    full_lm_head: bool = False  # Medusa: write a matrix over the whole vocabulary for each head
    seed: int = 0


class HeadKind(ABC):
    """One kind of head on one target. Weights are a dictionary by published name."""

    cross_entropy: ClassVar[float] = 1.0  # its share of the loss, where there is another
    trained_depth: ClassVar[int] = 16  # depths beyond which nothing new is learnt

    def __init__(
        self, target: Target, options: HeadOptions, ids: NDArray[np.int64], device: str = "cpu"
    ) -> None:
        self.target, self.options, self.device = target, options, device
        self.embedding = target.embedding.to(device)
        self.settings = target.settings  # of the head's own layer
        self.config: Mapping[str, Any] = {}  # what the head's config.json says otherwise
        self.fixed_vocabulary = False  # the head that it began from decided it
        self.training = False  # whether dropout is at work
        self.choose(ids)

    def choose(self, ids: NDArray[np.int64]) -> None:
        """Take these tokens of the target as the draft vocabulary: [D], ascending."""
        import torch

        self.ids = torch.from_numpy(ids).to(self.device)
        self.teacher = self.target.lm_head[ids].to(self.device)  # [D, H]
        self.place = torch.full((self.target.settings.vocab_size,), -1, device=self.device)
        self.place[self.ids] = torch.arange(len(ids), device=self.device)

    @property
    def depth(self) -> int:
        """Draft tokens that training looks ahead."""
        return 3

    def drop(self, x: torch.Tensor) -> torch.Tensor:
        """Dropout: a few thousand answers are soon learnt by heart."""
        from torch.nn import functional

        return functional.dropout(x, self.options.dropout, self.training)

    def candidates(self, labels: torch.Tensor, count: int | None) -> torch.Tensor | slice:
        """Draft tokens that a step compares: all, or `count` common ones and all of `labels`.

        lm_head is more than half of a step's work, and most of its rows say nothing at most places.
        """
        import torch

        if count is None or count >= len(self.ids):
            return slice(None)  # not a list of all: picking rows copies them, and back
        # A tokenizer merges frequent pairs first: low numbers are common ones.
        common = torch.arange(count, device=self.device)
        both: torch.Tensor = torch.unique(torch.cat([common, self.place[labels]]))
        return both

    @abstractmethod
    def start(self) -> Params:
        """The weights that training begins with, all of which it changes."""

    @abstractmethod
    def states(self, params: Params, batch: Batch, depth: int) -> Iterator[torch.Tensor]:
        """For each draft depth what goes to lm_head: [B, R, H], in the place of the token said."""

    @abstractmethod
    def lm_head(self, params: Params, depth: int) -> torch.Tensor:
        """[D, H]"""

    @abstractmethod
    def files(self, params: Params) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Tensors and config.json in the published layout."""

    def extra_loss(self, state: torch.Tensor, batch: Batch) -> torch.Tensor | None:
        """A loss on the states themselves, of every row [B, R]."""
        return None


def loss(
    kind: HeadKind, params: Params, batch: Batch, depth: int, classes: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy against the target's distribution over the draft vocabulary, and rows right.

    The mean over depths (each next one counts 0.8 of the last, as in EAGLE-3) and rows whose token
    is in the draft vocabulary. Second: per depth, the share of those rows where the head says the
    target's token.
    """
    import torch

    learnable = batch.valid & (kind.place[batch.labels] >= 0)
    wanted = batch.at(batch.final, 1)[learnable]  # [M, H]
    chosen = kind.candidates(batch.labels[learnable], classes)
    with torch.no_grad():
        teacher = torch.softmax(wanted @ kind.teacher[chosen].T, -1)  # [M, D]
        best = teacher.max(-1).indices
        teacher *= 1 - kind.options.hard
        teacher.scatter_add_(1, best[:, None], torch.full_like(teacher[:, :1], kind.options.hard))
    row = torch.arange(batch.valid.shape[1], device=batch.valid.device).expand_as(batch.valid)
    row = row[learnable]
    total: torch.Tensor = wanted.new_zeros(())
    weights, right = 0.0, []
    for d, state in enumerate(kind.states(params, batch, depth)):
        logits = state[learnable] @ kind.lm_head(params, d)[chosen].T
        each = -(teacher * torch.log_softmax(logits, -1)).sum(-1)
        if (extra := kind.extra_loss(state, batch)) is not None:
            each = kind.cross_entropy * each + extra[learnable]
        reached = row >= d  # nothing was drafted before the first row
        count = reached.sum().clamp(min=1)
        total = total + 0.8**d * (each * reached).sum() / count
        weights += 0.8**d
        with torch.no_grad():
            # Not argmax: in bfloat16 on a CPU it takes ten times as long as a maximum.
            said = logits.gather(-1, best[:, None])[:, 0] >= logits.amax(-1)
            right.append((said & reached).sum() / count)
    return total / weights, torch.stack(right)


def matches(kind: HeadKind, params: Params, batch: Batch, depth: int) -> NDArray[np.bool_]:
    """[depth, B, R]: does the token of this row, drafted at this depth, equal the output's?

    A row that stands d tokens behind the start of its draft is at depth d; all tokens before it
    are taken as accepted, which is what acceptance conditions on.
    """
    import torch

    with torch.no_grad():
        right = [
            (kind.ids[(state @ kind.lm_head(params, d).T).argmax(-1)] == batch.labels) & batch.valid
            for d, state in enumerate(kind.states(params, batch, depth))
        ]
    found: NDArray[np.bool_] = torch.stack(right).cpu().numpy()
    return found


def draft_ids(counts: NDArray[np.int64], size: int | None) -> NDArray[np.int64]:
    """The `size` most frequent tokens, ascending: [D]. Of equals, those that were merged first."""
    if size is None or size >= len(counts):
        return np.arange(len(counts))
    order = np.argsort(-counts, kind="stable")
    return np.sort(order[:size]).astype(np.int64)


def noise(draw: torch.Generator, rows: int, columns: int, scale: float) -> torch.Tensor:
    """Normal numbers that keep the size of what they are multiplied with, times `scale`."""
    import torch

    values: torch.Tensor = torch.randn(rows, columns, generator=draw) * (scale / columns**0.5)
    return values


def d2t(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Target id minus draft id, as EAGLE-3 writes it: [D]."""
    return ids - np.arange(len(ids))


def settings_config(kind: HeadKind, **changes: Any) -> Mapping[str, Any]:
    """A Llama config.json of one layer with the target's sizes, or those of the head's own."""
    s, config = kind.target.settings, kind.target.config
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": s.hidden_size,
        "intermediate_size": s.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": s.num_heads,
        "num_key_value_heads": s.num_kv_heads,
        "head_dim": s.head_size,
        "hidden_act": "silu",
        "rms_norm_eps": s.norm_epsilon,
        "rope_theta": config["rotary_base"],
        "rope_scaling": config["rotary_scaling"] or None,
        "max_position_embeddings": s.max_position_embeddings,
        "vocab_size": s.vocab_size,
        "tie_word_embeddings": False,
        "torch_dtype": s.dtype,
        **changes,
        **kind.config,
    }
