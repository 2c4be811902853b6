"""Real data sets as labelled windows and recordings: where they lie, how they are fetched, how they are read.

Nothing here is shipped with the data itself; docs/data.md has sources, licences and citations.
"""
