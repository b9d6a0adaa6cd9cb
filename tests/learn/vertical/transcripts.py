"""What each role of a vertical federation can read while a learner is fitted."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np

from solera.core.payload import encode
from solera.engines import blocks


class Transcript:
    """Payloads as they pass the ``driver``, and asks as each of the ``parties`` opens them."""

    def __init__(self):
        self.driver = []
        self.parties = {}

    def holds(self, reader, needle):
        """Whether these bytes stand anywhere in what ``reader`` ("driver" or a party) was given."""
        said = self.driver if reader == "driver" else self.parties.get(reader, [])
        return any(needle in frame for frame in said)

    def columns(self, reader, X, most=40):
        """Columns of X that stand in it as float64 or int64, in the order of these rows."""
        found = []
        for j, column in enumerate(np.asarray(X).T):
            rows = np.asarray(column)[:most]
            numbers = rows.astype(np.float64)
            forms = [numbers.tobytes()]
            if (numbers == np.rint(numbers)).all():
                forms.append(numbers.astype(np.int64).tobytes())
            if any(self.holds(reader, form) for form in forms):
                found.append(j)
        return found


@contextmanager
def transcript(federation, monkeypatch):
    """Record everything that anybody is given."""
    seen = Transcript()
    engine = federation.engine
    run, opened = engine.run, blocks.open_ask

    def record_run(ask, aggregation):
        payloads = getattr(ask.payload, "payloads", {-1: ask.payload})
        seen.driver += [encode(payload) for payload in payloads.values()]
        for block in run(ask, aggregation):
            seen.driver += [encode(reply.payload) for reply in block.batch]
            yield block

    def record_open(task, payload, round, client, *rest):
        content = opened(task, payload, round, client, *rest)
        seen.parties.setdefault(client, []).append(encode(content))
        return content

    with monkeypatch.context() as patch:
        patch.setattr(engine, "run", record_run)
        patch.setattr(blocks, "open_ask", record_open)
        yield seen
