"""Write the sentences of a report into docs/reports.md: ``python docs/make_reports.py``.

They are those of ``vtrain.report.document``; a test compares.  The rest of the page is written by
hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from vtrain.report.document import SENTENCES

PAGE: Final = Path(__file__).parent / "reports.md"
BEGIN: Final = "<!-- written by docs/make_reports.py -->\n"
END: Final = "<!-- as far as here -->\n"


def render() -> str:
    """The whole page."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    rows = [f"| {item.when} | {item.text} |" for item in SENTENCES.values()]
    return "\n".join([head + BEGIN + "| where | sentence |", "|---|---|", *rows, END + tail])


if __name__ == "__main__":
    PAGE.write_text(render())
