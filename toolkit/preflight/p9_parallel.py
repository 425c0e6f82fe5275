"""P9: ranks. Sizes that do not split are refused with the models; here are engines' ranks."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.preflight.facts import Facts
from toolkit.preflight.report import Finding


def check(facts: Facts) -> Iterator[Finding]:
    """The mapping of each engine against the recipe's parallel sizes."""
    for role, engine in facts.engines.items():
        model = facts.models.get(role)
        if model is None:
            continue  # P2 says so
        mapping = engine.pretrained["mapping"]
        for key, name in {"tp": "tp_size", "pp": "pp_size"}.items():
            wanted, found = getattr(model.parallel, key), int(mapping.get(name, 1))
            if found != wanted:
                yield Finding(
                    f"{engine.directory}/config.json",
                    f"mapping.{name} is {found}, parallel.{key} of the {role} is {wanted}; an "
                    f"engine runs on as many GPUs as it was built for: set it to {found}, or "
                    "build again",
                )
