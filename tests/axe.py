"""What axe-core, the accessibility checker, finds in a page."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe


def serious(page: Any) -> list[str]:
    """A line for each element with a serious or critical finding: the rule, what it asks for, and the element."""
    found = Axe().run(page).response["violations"]
    return [
        f"{rule['id']} ({rule['help']}): {node['html'][:200]} {node['failureSummary']}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]
