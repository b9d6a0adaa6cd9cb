"""Closed jobs: every owner runs the learner itself, and only sums over all owners are shared.

What owners approve is in :mod:`.text`, the protocol they follow on a board in :mod:`.run`, its end
in :mod:`.result`, what an owner keeps in :mod:`.store`. The learner asks :mod:`.engine`; one ask
becomes one or two sums in :mod:`.sums`, of terms that :mod:`.judge` lets through.
"""
