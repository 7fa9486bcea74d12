"""Sphinx settings of the documentation site: `make docs` builds it into build/docs.

The pages are Markdown that GitHub renders as well. Warnings are errors, so that a link to a page,
a heading or a picture that does not exist fails the build.
"""

from importlib.metadata import version as installed_version

from sphinx.application import Sphinx

project = "metaquorum"
author = "The metaquorum maintainers"
release = version = installed_version("metaquorum")

extensions = ["myst_parser"]
root_doc = "README"
templates_path = ["templates"]
html_additional_pages = {"index": "index.html"}  # leads to README.html
exclude_patterns: list[str] = []
source_suffix = {".md": "markdown"}
nitpicky = True

# The navigation. A page that none of these names fails the build.
_SECTIONS = {
    "Tutorial": ["tutorial/*"],
    "How-to guides": ["howto/*"],
    "Reference": ["reference/*"],
    "Explanation": ["ARCHITECTURE", "explanation/*"],
    "Decisions": ["decisions/README", "decisions/[0-9]*"],
    "Glossary": ["glossary"],
}

# Anchors of headings are GitHub's, so that one link works in both places.
myst_heading_anchors = 4

html_theme = "furo"
html_title = "metaquorum"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "native"


def _add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Append the navigation to the front page, where GitHub would show it as code."""
    if page == root_doc:
        for caption, pages in _SECTIONS.items():
            lines = ["```{toctree}", ":hidden:", ":glob:", ":titlesonly:", f":caption: {caption}"]
            source[0] += "\n".join(["\n", *lines, *pages, "```", ""])


def setup(app: Sphinx) -> None:
    """Register this file's part of the build with Sphinx."""
    app.connect("source-read", _add_navigation)
