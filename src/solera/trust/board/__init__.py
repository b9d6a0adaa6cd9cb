"""Closed jobs: every owner runs the approved learner itself, and only sums are shared.

:mod:`.text` is what owners approve, :mod:`.run` the protocol that owners follow on a board,
:mod:`.engine` the engine on which the learner runs without rows, :mod:`.judge` what of an owner's
contributions may be added up.
"""
