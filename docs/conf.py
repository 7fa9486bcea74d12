"""Sphinx settings of the documentation site: `make docs` builds it into build/docs.

The pages are Markdown that GitHub renders as well. Warnings are errors, so that a link to a page,
a heading or a picture that is not there fails the build.
"""

from importlib.metadata import version as installed_version

project = "metaquorum"
author = "The metaquorum maintainers"
release = version = installed_version("metaquorum")

extensions = ["myst_parser"]
root_doc = "README"
exclude_patterns = ["conf.py"]
source_suffix = {".md": "markdown"}
nitpicky = True

# Anchors of headings are GitHub's, so that one link works in both places.
myst_heading_anchors = 4
# A link to a file outside docs/ (CONTRIBUTING.md, a test) would be broken on the site: a warning.
suppress_warnings: list[str] = []

html_theme = "furo"
html_title = "metaquorum"
html_static_path: list[str] = []
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "native"
