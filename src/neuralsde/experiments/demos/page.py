"""A report as one HTML page that needs no other file."""

from __future__ import annotations

import base64
import html
from pathlib import Path

STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; color: #222; }
img { max-width: 100%; } table { border-collapse: collapse; font-size: 14px; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .3rem .7rem; border-bottom: 1px solid #ddd; }"""


def page(title: str, body: str) -> str:
    """The whole page; `body` is HTML."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>neuralsde: {html.escape(title)}</title>
<style>
{STYLE}
</style></head><body>
<h1>{html.escape(title)}</h1>
{body}
</body></html>
"""


def image(file: Path, words: str) -> str:
    """A picture (.png, .gif) inside the page; `words` say what it shows."""
    content = base64.b64encode(file.read_bytes()).decode()
    return f'<img src="data:image/{file.suffix[1:]};base64,{content}" alt="{html.escape(words)}">'


def table(markdown: str) -> str:
    """A Markdown table in HTML."""
    rows = [[html.escape(c.strip()) for c in line.strip("|").split("|")] for line in markdown.splitlines()]
    head = "".join(f"<th>{c}</th>" for c in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows[2:])
    return f"<table><tr>{head}</tr>{body}</table>"
