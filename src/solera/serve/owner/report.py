"""What left, as a PDF for a data-protection officer, signed with the client's key.

The signature is the last line of the file, which PDF readers take for a comment::

    %solera-report 1 <public key> <signature over the SHA-256 of all bytes before>

Whoever knows the client's public key checks it with ``solera audit check-report``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from solera.core.errors import UsageError
from solera.serve.agent.home import Place
from solera.serve.agent.ledger import Statement
from solera.serve.agent.policy import OwnerPolicy
from solera.serve.agent.what_left import add_up
from solera.serve.identity import Identity, signed_message, verify
from solera.serve.owner.record import Record
from solera.trust.policy import PROMISE

_MOST_REPLIES = 1000
_LINE = re.compile(rb"\n%solera-report 1 ([0-9a-f]{64}) ([0-9a-f]{128})\n\Z")


@dataclass(frozen=True)
class Facts:
    """What a report is about."""

    place: Place | None
    key: str
    record: Record
    spent: Statement | None
    policy: OwnerPolicy | None


def report(facts: Facts, identity: Identity, now: datetime | None = None) -> bytes:
    """The PDF, signed."""
    content = _pdf(facts, now or datetime.now(UTC))
    signature = identity.sign(_message(content)).hex()
    return content + f"\n%solera-report 1 {identity.sign_key.hex()} {signature}\n".encode()


def check_report(file: bytes) -> str:
    """The public key, in hex, that signed a report as it is; an error if none did."""
    last = _LINE.search(file)
    if last is None:
        raise UsageError("this is no signed report", hint="it ends with %solera-report")
    key = last[1].decode()
    content = file[: last.start()]
    if not verify(bytes.fromhex(key), _message(content), bytes.fromhex(last[2].decode())):
        raise UsageError("the report was changed after it was signed")
    return key


def _message(content: bytes) -> bytes:
    return signed_message("report", hashlib.sha256(content).digest())


# --- the document ---


def _pdf(facts: Facts, now: datetime) -> bytes:
    name = facts.place.name if facts.place else "a client that has left"
    page = _Document(f"What left {name}", now)
    page.pairs(_about(facts, now))
    page.heading("By job, recipient and task")
    page.table(
        ("Job", "Recipient", "Task", "Answered", "Refused", "Numbers", "Bytes", "ε", "Last"),
        [
            (t.job, t.recipient, t.task, t.answered, t.refused + t.failed, f"{t.numbers:,}",
             f"{t.bytes:,}", f"{t.epsilon:.3g}", t.last[:16])
            for t in add_up(facts.record.entries)
        ],
        (3, 3, 4, 2, 2, 2, 2, 1.5, 3),
    )  # fmt: skip
    page.heading("What people decided")
    page.table(
        ("When", "Who", "Decided", "Job", "Why, or until when"),
        [
            (d["time"][:16], d["person"], d["verdict"], d["name"] or d["hash"][:16],
             d["reason"] or d["until"])
            for d in facts.record.decisions()
        ],
        (3, 2, 2, 4, 6),
    )  # fmt: skip
    page.heading("Privacy budget")
    page.text(_budget(facts.spent))
    replies = facts.record.replies()
    page.heading("Every reply, and every post of a closed job, the newest first")
    if len(replies) > _MOST_REPLIES:
        page.text(f"The newest {_MOST_REPLIES:,} of {len(replies):,}; the log holds them all.")
    page.table(
        ("When", "Job", "Task", "Ended", "Bytes", "SHA-256 of what left"),
        [
            (e.time[:19], e.facts["job"], e.facts["task"], e.facts["status"],
             f"{e.facts['bytes']:,}", e.facts["digest"][:32])
            for e in replies[:_MOST_REPLIES]
        ],
        (4, 4, 4, 2, 2, 6),
    )  # fmt: skip
    if facts.policy is not None:
        page.heading("The policy, in sentences")
        for line in (*PROMISE, *facts.policy.describe().splitlines()):
            page.text(line)
    return page.bytes()


def _about(facts: Facts, now: datetime) -> Iterable[tuple[str, str]]:
    if facts.place is not None:
        yield "Client", f"{facts.place.name} (number {facts.place.client})"
        yield "Federation", f"{facts.place.federation} at {facts.place.url}"
    yield "Client's key", facts.key
    yield "Made", f"{now:%Y-%m-%d %H:%M} UTC"
    report = facts.record.report
    yield "Audit log", f"{report.head[0]:,} lines, head {report.head[1]}"
    yield "Verified", "nothing was changed" if report.ok else "; ".join(report.problems)


def _budget(spent: Statement | None) -> str:
    if spent is None:
        return "Nothing has left with noise."
    most = "" if spent.budget is None else f" of {spent.budget:g}"
    return f"Spent: ε = {spent.epsilon:.4g}{most} at δ = {spent.delta:g}."


class _Document:
    """A PDF of headings, texts and tables."""

    def __init__(self, title: str, now: datetime) -> None:
        import matplotlib
        from fpdf import FPDF

        fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
        self._pdf: Any = FPDF(format="A4")
        self._pdf.set_creation_date(now)
        self._pdf.set_title(title)
        self._pdf.add_font("DejaVu", "", fonts / "DejaVuSans.ttf")
        self._pdf.add_font("DejaVu", "B", fonts / "DejaVuSans-Bold.ttf")
        self._pdf.set_auto_page_break(auto=True, margin=15)
        self._pdf.add_page()
        self._line(title, 18, "B", after=4)

    def heading(self, text: str) -> None:
        self._pdf.ln(4)
        self._line(text, 12, "B", after=2)

    def text(self, text: str) -> None:
        self._line(text, 9, "", after=1)

    def pairs(self, pairs: Iterable[tuple[str, str]]) -> None:
        for name, value in pairs:
            self.text(f"{name}: {value}")

    def table(self, names: Sequence[str], rows: Sequence[Sequence[Any]], widths: Any) -> None:
        if not rows:
            self.text("None.")
            return
        self._pdf.set_font("DejaVu", "", 7)
        with self._pdf.table(col_widths=widths, text_align="LEFT", line_height=4) as table:
            for line in (names, *rows):
                row = table.row()
                for cell in line:
                    row.cell(_printable(cell))

    def bytes(self) -> bytes:
        return bytes(self._pdf.output())

    def _line(self, text: str, size: int, style: str, after: int) -> None:
        self._pdf.set_font("DejaVu", style, size)
        self._pdf.multi_cell(0, size * 0.5, _printable(text), new_x="LMARGIN", new_y="NEXT")
        self._pdf.ln(after)


def _printable(value: Any) -> str:
    return "".join(c if c.isprintable() else "�" for c in str(value)) or " "
