"""Labels of windows: rules, class names, files."""
