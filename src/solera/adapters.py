"""``so.adapters``: loops of other libraries for :class:`~solera.FedTorch`."""

from solera.learn.averaging.loops.adapters import hugging_face, keras, lightning, scikit_learn

__all__ = ["hugging_face", "keras", "lightning", "scikit_learn"]
