"""The theses' experiments by name: what they printed, what comes out here, and the difference.

``solera study NAME`` runs a module of this package; underscores of its name are hyphens. A module
has a ``TITLE``, says in ``SCALE_DOWN`` how it differs in size from the original, names what is
known to be wrong with the source in ``ERRATA``, and has ``run(full, progress)``, which
returns a list of :func:`~solera.published.rows.row`. By default it takes minutes on two cores;
``full`` is the original size.
"""
