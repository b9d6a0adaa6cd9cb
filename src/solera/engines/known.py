"""What a process knows by name, brought to another that did not begin as its copy."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

import cloudpickle  # code of a notebook goes by value

from solera.core.registry import register


@dataclass
class Known:
    """Entries of registries, as :func:`~solera.core.registry.registered` gives them.

    Those of Solera itself are left out; every other is pickled on its own, and ``lacking`` says why
    where that fails.
    """

    entries: list[dict[str, bytes]] = field(default_factory=list)
    lacking: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, known: list[dict[str, Any]]) -> Known:
        found = cls()
        for entries in known:
            found.entries.append({})
            for name, thing in entries.items():
                try:
                    if not _is_ours(thing):
                        found.entries[-1][name] = cloudpickle.dumps(thing)
                except Exception as error:
                    found.lacking[name] = repr(error)
        return found

    def learn(self) -> None:
        """Register in this process what can be loaded here.

        One that nobody asks for may lack a module that the other process has.
        """
        register([self._loaded(entries) for entries in self.entries])

    def _loaded(self, entries: dict[str, bytes]) -> dict[str, Any]:
        found = {}
        for name, thing in entries.items():
            try:
                found[name] = pickle.loads(thing)  # noqa: S301 - of the process that started this one
            except Exception as error:
                self.lacking[name] = repr(error)
        return found

    def explained(self, reason: str) -> str:
        """An error's text, and why what it names is not known here."""
        why = [f"; {name}: {e}" for name, e in self.lacking.items() if repr(name) in reason]
        return reason + "".join(why)


def _is_ours(thing: Any) -> bool:
    """Whether it is part of Solera, and so known to every process that imports it."""
    made = getattr(thing, "one", thing)
    home, name = getattr(made, "__module__", None) or "", getattr(made, "__qualname__", "")
    return home.split(".")[0] == "solera" and "<" not in name  # a lambda holds what was given
