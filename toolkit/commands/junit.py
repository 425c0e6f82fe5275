"""A build or a verification as JUnit XML, which every CI system shows.

One test case for each artefact, or for each check.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from toolkit.execute import Made
    from toolkit.measure.verification import Check
    from toolkit.plan import Plan


def write_junit(path: Path, plans: Sequence[Plan], done: Sequence[Made], error: str | None) -> None:
    """What was made or found, what failed, and what was not reached."""
    from toolkit.steps import common

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
    _write(path, suite, len(artefacts), failed, len(artefacts) - len(made) - failed)


def write_checks(path: Path, name: str, checks: Sequence[Check]) -> None:
    """What passed, and what did not, with its reason."""
    suite = ElementTree.Element("testsuite", name=name)
    for check in checks:
        case = ElementTree.SubElement(suite, "testcase", classname="verify", name=check.name)
        if check.passed:
            ElementTree.SubElement(case, "system-out").text = check.conclusion()
        else:
            ElementTree.SubElement(case, "failure", message=check.conclusion())
    _write(path, suite, len(checks), sum(not check.passed for check in checks), 0)


def _write(path: Path, suite: ElementTree.Element, tests: int, failures: int, skipped: int) -> None:
    from toolkit.store import write_atomic

    suite.set("tests", str(tests))
    suite.set("failures", str(failures))
    suite.set("skipped", str(skipped))
    write_atomic(path, ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n")
