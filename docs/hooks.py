"""Files of the repository that a page links to become part of the site: `../src/concf/x.py` is right in both."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"\]\(((?:\.\./)+)(\.?[\w-][\w./-]*)\)")
RELATIVE = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]+\)")  # a link of such a document, right only in the repository
SOURCE = "---\nsearch: {{exclude: true}}\nhide: [toc]\n---\n\n# {path}\n\n```python\n{text}```\n"


def on_files(files: Files, config: Any) -> Files:
    """Add every file outside of docs/ that is linked to: documents and source as pages, the rest as it is."""
    pages = [(each.src_uri.count("/"), each.content_string) for each in files.documentation_pages()]
    found = {path for depth, text in pages for up, path in OUTSIDE.findall(text) if _leaves(up, depth)}
    for path in sorted(found):
        text = (ROOT / path).read_text(encoding="utf-8")
        content = SOURCE.format(path=path, text=text) if path.endswith(".py") else RELATIVE.sub(r"\1", text)
        files.append(File.generated(config, _place(path), content=content, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point such links to what was added."""
    depth = page.file.src_uri.count("/")

    def pointed(link: re.Match[str]) -> str:
        return f"]({'../' * depth}{_place(link[2])})" if _leaves(link[1], depth) else link[0]

    return OUTSIDE.sub(pointed, markdown)


def _leaves(up: str, depth: int) -> bool:
    """Whether so many steps up lead out of docs/. depth: folders of docs/ that the page is in"""
    return up.count("../") > depth


def _place(path: str) -> str:
    return f"source/{path.removesuffix('.py') + '.md' if path.endswith('.py') else path}"
