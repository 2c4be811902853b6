"""The framework of all studies: parts, their runs, and the rows made of them.

A study is a folder with runs (a setting with a ``key()``, an outcome), ``parts/`` (one module a table, each
with a ``PART``) and ``STUDY``, a :class:`lichen_lab.benchmarks.study.study.Study`.
"""
