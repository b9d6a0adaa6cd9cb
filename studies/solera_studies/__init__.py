"""The theses' experiments by name: what they printed, what comes out here, and the difference.

``solera study NAME`` runs a module of this package; what one has, :mod:`solera.study.named` says.
The theses' numbers are in :mod:`~solera_studies.theses`; ``docs/explanation/errata.md`` has the
evidence for what is known to be wrong with them.
"""
