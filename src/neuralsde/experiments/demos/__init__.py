"""Demonstrations: what the library does, run on the spot, with figures and a page to look at."""
