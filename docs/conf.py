"""How Sphinx builds these pages: ``make docs``."""

from importlib.metadata import version as installed

project = "shardsim"
author = "The shardsim maintainers"
copyright = "The shardsim maintainers"  # noqa: A001  # Sphinx's name
release = installed("shardsim")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_rtype = False
html_theme = "alabaster"
html_theme_options = {"description": "how a transformer trains on a GPU cluster, predicted", "page_width": "1100px"}
nitpicky = False
