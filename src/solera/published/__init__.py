"""The theses' experiments by name: what they printed, what comes out here, and the difference.

``solera study NAME`` runs a module of this package; underscores of its name are hyphens. A module
has

- a ``TITLE``, and the ``TABLES`` of :mod:`~solera.published.theses` that it answers for;
- ``SCALE_DOWN``, how it differs in size from the original, and ``SIZES``, the same in a few words
  for each row by default (False) and with ``full`` (True), where a row does not say its own;
- ``DIFFERS``, in one line what our protocol does otherwise than the published one, and ``ERRATA``,
  what is known to be wrong with the source (``docs/explanation/errata.md`` has the evidence);
- ``LEFT_OUT``: the cells of its tables that it does not print even at full size, and why;
- ``planned(full)``: the cells that it prints at that size;
- ``run(full, progress)``, which returns a list of :func:`~solera.published.rows.row`;
- where it has pictures, ``figures(rows)``: captions and matplotlib figures for the report.

By default a study takes minutes on two cores; ``full`` is the original size.
"""
