"""Real data sets as labelled windows and recordings: places, downloads and loaders.

Nothing here is shipped with the data itself; docs/data.md has sources, licences and citations.
"""
