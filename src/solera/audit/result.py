"""What all results of audits have in common: they print as a few lines."""

from __future__ import annotations

from solera.core.html import html_table


class Result:
    """A result that says in words what an attack found."""

    title: str

    def facts(self) -> list[tuple[str, str]]:
        """What was found, line by line."""
        raise NotImplementedError

    def __str__(self) -> str:
        lines = self.facts()
        width = max(len(name) for name, _ in lines)
        return "\n".join([self.title, *(f"  {name:<{width}}  {text}" for name, text in lines)])

    def _repr_html_(self) -> str:
        return html_table(self.facts(), title=self.title)


def told(epsilon: float | None, delta: float, confidence: float) -> tuple[str, str]:
    """The line about ε."""
    if epsilon is None:
        return "ε", "not measured: give rows that the attack must not take for those inside"
    if epsilon <= 0:
        return "ε", f"no bound: the attack does no better than chance may (δ = {delta:g})"
    return "ε", f"at least {epsilon:.2f} at δ = {delta:g}, {confidence:.0%} confidence"
