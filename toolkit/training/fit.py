"""The training loop: AdamW on a clock, checkpoints to resume from, the best head by acceptance.

A directory holds `state.safetensors` (weights, moments and progress, replaced in one step),
`curve.jsonl` (a line for each evaluation) and the head itself, model.safetensors and config.json,
as it was when held-out acceptance was highest.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.errors import RunError
from toolkit.store import write_atomic
from toolkit.training.acceptance import Acceptance, acceptance
from toolkit.training.batches import Batch, TrainingData, in_order, make_batch
from toolkit.training.head import HeadKind, draft_ids, loss, matches
from toolkit.training.shards import Sample
from toolkit.training.tensors import read_tensors, write_tensors

if TYPE_CHECKING:
    import torch

    from toolkit.training.head import Params

STATE, CURVE = "state.safetensors", "curve.jsonl"
MODEL, CONFIG = "model.safetensors", "config.json"
LM_HEAD = "lm_head.weight"
MEASURED_TOGETHER = 16


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """How long and how fast; a part of the time is written as a share of it, 0..1."""

    minutes: float = 60.0
    max_steps: int | None = None
    batch: int = 8  # sequences
    learning_rate: float = 1e-3
    warmup_steps: int = 50
    weight_decay: float = 0.01
    clip: float = 1.0
    depths: tuple[float, ...] = (0.0, 0.1, 0.2)  # from here on one more depth is trained
    lm_head_from: float = 0.35  # from here on lm_head is trained too; before, it is the target's
    classes: int | None = 2048  # before lm_head is trained: tokens that a step compares
    eval_minutes: float = 4.0
    watched: int = 40  # held-out outputs that an evaluation looks at
    patience: int = 8  # evaluations without a better one
    bfloat16: bool | None = None  # None: where the processor multiplies it itself
    seed: int = 0


@dataclass
class Progress:
    """How far a run is; what resuming needs beside the tensors."""

    step: int = 0
    epoch: int = 0
    seconds: float = 0.0
    samples: int = 0
    best: float = 0.0
    since_best: int = 0
    ids: list[int] = field(default_factory=list)  # the draft vocabulary
    started_from: dict[str, Any] | None = None  # the published head that it began with


@dataclass(frozen=True)
class Evaluation:
    """One line of the curve."""

    step: int
    minutes: float
    loss: float | None  # mean since the last line; None: nothing was trained yet
    right: tuple[float, ...]  # per depth: training rows whose token the head says
    conditional: tuple[float, ...]  # held out, per depth
    acceptance_length: float  # held out
    train_sequences: int


class Fit:
    """One run, new or resumed.

    `begun` are the weights of a published head, and `started_from` what identifies it: a new run
    looks at its acceptance first, so that what is kept is never worse.
    """

    def __init__(
        self,
        kind: HeadKind,
        data: TrainingData,
        heldout: TrainingData,
        out: Path,
        options: FitOptions,
        begun: Params | None = None,
        started_from: dict[str, Any] | None = None,
    ) -> None:
        self.kind, self.data, self.heldout = kind, data, heldout
        self.out, self.options = out, options
        self.params: Params = kind.start() if begun is None else begun
        self.progress = Progress(ids=kind.ids.cpu().tolist(), started_from=started_from)
        self._resume()
        self._optimizer: Any = None

    def run(self, report: Callable[[Evaluation], None] = lambda _: None) -> Evaluation:
        """Train until time, steps or patience are over; returns the last evaluation."""
        try:
            return self._run(report)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            raise RunError(
                f"out of memory after {self.progress.step} steps: lower --batch (now "
                f"{self.options.batch}), --draft-vocab or the --max-tokens of the data; the same "
                "command goes on from the last checkpoint"
            ) from None

    def _run(self, report: Callable[[Evaluation], None]) -> Evaluation:
        losses: list[torch.Tensor] = []
        right: list[torch.Tensor] = []
        if self.progress.started_from and not self.progress.step:
            report(self._evaluate(losses, right))
        started = evaluated = time.monotonic()
        before = self.progress.seconds
        for batch in self._batches():
            value, said = self._step(batch)
            losses.append(value)
            right.append(said)
            now = time.monotonic()
            self.progress.seconds = before + now - started
            over = self.share >= 1.0
            if over or now - evaluated >= 60 * self.options.eval_minutes:
                evaluation = self._evaluate(losses, right)
                report(evaluation)
                losses, right = [], []
                evaluated = time.monotonic()
                started += evaluated - now  # looking is not training
                if over or self.progress.since_best >= self.options.patience:
                    return evaluation
        raise RunError(f"{self.data.directory}: no training data")

    @property
    def share(self) -> float:
        """How much of the run is over."""
        by_time = self.progress.seconds / (60 * self.options.minutes)
        steps = self.options.max_steps
        return max(by_time, self.progress.step / steps if steps else 0.0)

    @property
    def depth(self) -> int:
        """Draft tokens that are trained now."""
        reached = sum(self.share >= share for share in self.options.depths)
        return max(1, min(reached, self.kind.depth, self.kind.trained_depth))

    def _batches(self) -> Iterator[Batch]:
        hidden = self.kind.target.settings.hidden_size
        while self.data.samples:
            seed, progress = self.options.seed, self.progress
            for group in self.data.groups(self.options.batch, seed, progress.epoch):
                yield make_batch(group, hidden, self.kind.device)
            progress.epoch += 1
            self.data.refresh()

    def _step(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        optimizer = self._ready()
        classes = self.options.classes if self.share < self.options.lm_head_from else None
        device, wanted = self.kind.device, self.options.bfloat16
        self.kind.training = True
        with torch.autocast(
            device, torch.bfloat16, bfloat16_pays(device) if wanted is None else wanted
        ):
            value, right = loss(self.kind, self.params, batch, self.depth, classes)
        self.kind.training = False
        optimizer.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        trained = [p for p in self.params.values() if p.grad is not None]
        torch.nn.utils.clip_grad_norm_(trained, self.options.clip)
        for group in optimizer.param_groups:
            group["lr"] = self._rate()
        optimizer.step()
        self.progress.step += 1
        self.progress.samples += len(batch.tokens)
        return value.detach(), right

    def _rate(self) -> float:
        """Linear warm-up, then a cosine down to a fiftieth."""
        warm = min(1.0, (self.progress.step + 1) / max(1, self.options.warmup_steps))
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, self.share)))
        return self.options.learning_rate * warm * (0.02 + 0.98 * cosine)

    def _ready(self) -> Any:
        """The optimizer; lm_head joins when its time has come."""
        import torch

        for name, tensor in self.params.items():
            tensor.requires_grad_(name != LM_HEAD or self.share >= self.options.lm_head_from)
        if self._optimizer is None:
            decayed = [p for p in self.params.values() if p.ndim > 1]
            rest = [p for p in self.params.values() if p.ndim <= 1]
            self._optimizer = torch.optim.AdamW(
                [
                    {"params": decayed, "weight_decay": self.options.weight_decay},
                    {"params": rest, "weight_decay": 0.0},
                ],
                lr=self.options.learning_rate,
                betas=(0.9, 0.95),
            )
            self._restore_moments()
        return self._optimizer

    def best_evaluation(self) -> dict[str, Any] | None:
        """The line of the curve that the written head belongs to."""
        curve = self.out / CURVE
        lines = curve.read_text(encoding="utf-8").splitlines() if curve.exists() else []
        found = [json.loads(line) for line in lines]
        return max(found, key=lambda line: line["acceptance_length"], default=None)

    # Evaluation and files

    def measure(self) -> Acceptance:
        """Acceptance on the first greedy outputs of the held-out split."""
        greedy = [sample for sample in self.heldout.samples if sample.greedy]
        return greedy_acceptance(self.kind, self.params, greedy[: self.options.watched])

    def _evaluate(self, losses: list[torch.Tensor], right: list[torch.Tensor]) -> Evaluation:
        import torch

        found = self.measure()
        last = right[-1].shape[0] if right else 0
        deepest = [r for r in right if r.shape[0] == last]
        said = torch.stack(deepest).mean(0) if deepest else ()
        evaluation = Evaluation(
            step=self.progress.step,
            minutes=round(self.progress.seconds / 60, 2),
            loss=round(float(torch.stack(losses).mean()), 4) if losses else None,
            right=tuple(round(float(x), 4) for x in said),
            conditional=tuple(round(x, 4) for x in found.conditional),
            acceptance_length=round(found.acceptance_length, 4),
            train_sequences=len(self.data.samples),
        )
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out / CURVE).open("a", encoding="utf-8") as curve:
            curve.write(json.dumps(asdict(evaluation)) + "\n")
        # A head that training begins with is written whatever it says: resuming reads its sizes.
        if found.acceptance_length > self.progress.best or not self.progress.step:
            self.progress.best, self.progress.since_best = found.acceptance_length, 0
            write_head(self.kind, self.params, self.out)
        else:
            self.progress.since_best += 1
        self._save()
        self.data.refresh()
        self._choose_vocabulary()
        return evaluation

    def _choose_vocabulary(self) -> None:
        """The most frequent tokens of all data so far, as long as lm_head is the target's own."""
        if self.kind.fixed_vocabulary or self.share >= self.options.lm_head_from:
            return
        counts = self.data.token_counts(self.kind.target.settings.vocab_size)
        self.kind.choose(draft_ids(counts, len(self.kind.ids)))
        self.progress.ids = self.kind.ids.tolist()
        if LM_HEAD in self.params:
            self.params[LM_HEAD].data.copy_(self.kind.teacher)

    def _save(self) -> None:
        tensors = {f"weight.{name}": tensor for name, tensor in self.params.items()}
        for name, tensor in self.params.items():
            state = self._optimizer.state.get(tensor) if self._optimizer else None
            for key, value in (state or {}).items():
                tensors[f"{key}.{name}"] = value
        write_tensors(self.out / STATE, tensors, {"progress": asdict(self.progress)})

    def _resume(self) -> None:
        self._moments: Mapping[str, torch.Tensor] = {}
        path = self.out / STATE
        if not path.exists():
            return
        tensors, words = read_tensors(path)
        self.progress = Progress(**words["progress"])
        self.kind.choose(np.array(self.progress.ids, np.int64))
        for name in self.params:
            self.params[name] = tensors[f"weight.{name}"].to(self.kind.device)
        self._moments = {k: v for k, v in tensors.items() if not k.startswith("weight.")}

    def _restore_moments(self) -> None:
        for name, tensor in self.params.items():
            state = {
                key: self._moments[f"{key}.{name}"].to(tensor.device if key != "step" else "cpu")
                for key in ("step", "exp_avg", "exp_avg_sq")
                if f"{key}.{name}" in self._moments
            }
            if state:
                self._optimizer.state[tensor] = state


def greedy_acceptance(kind: HeadKind, params: Params, greedy: Sequence[Sample]) -> Acceptance:
    """Of greedy drafts on greedy outputs."""
    depth = kind.depth

    def found() -> Iterator[tuple[Any, int]]:
        for group in in_order(greedy, MEASURED_TOGETHER):
            made = make_batch(group, kind.target.settings.hidden_size, kind.device)
            said = matches(kind, params, made, depth)
            for i, sample in enumerate(group):
                yield said[:, i], len(sample.output) - 1

    return acceptance(found(), depth)


def write_head(kind: HeadKind, params: Params, out: Path) -> None:
    """The published layout, in the target's dtype."""
    import torch

    dtype = getattr(torch, kind.target.settings.dtype)
    tensors, config = kind.files({name: t.detach().cpu() for name, t in params.items()})
    written = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }
    write_atomic(out / CONFIG, json.dumps(config, indent=2) + "\n")
    write_tensors(out / MODEL, written)


def bfloat16_pays(device: str) -> bool:
    """Whether matrices multiply faster in bfloat16 than in float32.

    On a GPU, and on a CPU with instructions for it (seen: four times). Another CPU emulates it,
    five times slower.
    """
    import torch

    if device != "cpu":
        return True
    asked = getattr(torch.cpu, "get_capabilities", None)  # not in older releases
    found = asked() if asked else {}
    return any(found.get(name, False) for name in ("amx_bf16", "avx512_bf16"))


def out_of_memory(error: BaseException) -> bool:
    """Whether it is torch's way, or Python's, to say that memory is full."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in said or "can't allocate" in said
