"""Published tables, run again: ``solera study NAME``.

A named study is a module of this package. Its docstring's first line says what it shows; its
function ``run(full=False, progress=None)`` returns a :class:`~solera.study.comparison.Comparison`
of the published figures and ours, at a size that two cores finish in minutes, or with ``full`` at
the original one. The name of the study is that of the module, with hyphens.
"""
