"""How the documentation is built: `sphinx-build -W docs build/docs`."""

from mist.version import __version__

project = "mist"
author = "the mist authors"
copyright = "2026, the mist authors"  # noqa: A001  Sphinx's name for it
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3  # so that links to a heading work as they do where the files are shown
default_role = "code"  # what single backticks are in docstrings
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"mist {__version__}"
html_favicon = "../mist/static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["mist.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"footer_icons": []}
