"""What every study of this folder is made of: parts, the runs that they want, their rows.

A study is a folder with runs (a setting with a ``key()``, an outcome), ``parts/`` (one module a table, each
with a ``PART``) and ``STUDY``, a :class:`lichen_lab.benchmarks.study.study.Study`.
"""
