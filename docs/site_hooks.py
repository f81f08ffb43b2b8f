"""What mkdocs does to every page before it is set (`hooks` in mkdocs.yml)."""

from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A value and its interval stay on one line."""
    return markdown.replace(" ± ", "\u00a0±\u00a0")
