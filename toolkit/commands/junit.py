"""A build as JUnit XML, which every CI system shows: one test case for each artefact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from toolkit.execute import Made
    from toolkit.plan import Plan


def write_junit(path: Path, plans: Sequence[Plan], done: Sequence[Made], error: str | None) -> None:
    """What was made or found, what failed, and what was not reached."""
    from toolkit.steps import common
    from toolkit.store import write_atomic

    made = {(m.artefact.kind, m.artefact.roles, m.artefact.command): m for m in done}
    names = " ".join(plan.recipe.name for plan in plans)
    suite = ElementTree.Element("testsuite", name=f"spectool build {names}")
    failed, artefacts = 0, common(plans)
    for artefact in artefacts:
        case = ElementTree.SubElement(
            suite, "testcase", classname=artefact.kind, name=artefact.role
        )
        if found := made.get((artefact.kind, artefact.roles, artefact.command)):
            case.set("time", f"{found.seconds:.3f}")
            state = "cached" if found.entry.cached else "built"
            ElementTree.SubElement(case, "system-out").text = f"{state} {found.entry.path}"
        elif error and not failed:
            failed = 1
            ElementTree.SubElement(case, "failure", message=error.splitlines()[0]).text = error
        else:
            ElementTree.SubElement(case, "skipped", message="not reached")
    suite.set("tests", str(len(artefacts)))
    suite.set("failures", str(failed))
    suite.set("skipped", str(len(artefacts) - len(made) - failed))
    write_atomic(path, ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n")
