"""Text for people out of words that others wrote."""


def one_line(words: str) -> str:
    """Give the words in one line, without control characters that a terminal would obey."""
    return " ".join("".join(c if c.isprintable() else " " for c in words).split())
