"""Whether a program's output fits a terminal of 80 columns. Used by tests of commands."""

import re

COLUMNS = 80
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ERASE = "\r\x1b[K"  # a progress line is drawn again


def must_stay_whole(word):
    """Paths, URLs, commands in quotes, hashes and tokens: a reader copies them."""
    return "/" in word or "`" in word or len(word) > 40


def too_wide(output):
    """The lines that do not fit, even without the words that must stay whole."""
    found = []
    for line in re.split(r"\n|\r", COLOUR.sub("", output.replace(ERASE, "\n"))):
        rest = " ".join(word for word in line.split(" ") if not must_stay_whole(word))
        if len(line) > COLUMNS and (rest == line or len(rest) > COLUMNS):
            found.append(line)
    return found
