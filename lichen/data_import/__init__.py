"""``lichen data import``: tables, sound files and folders of images -> recordings."""
