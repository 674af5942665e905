"""What Sphinx is told: pages are Markdown (MyST), the theme is Furo, what is written wrong is a warning."""

from __future__ import annotations

from typing import Final

import tessera

project: Final = "Tessera"
author: Final = "The authors of Tessera"
copyright: Final = author
version: Final = tessera.__version__
release: Final = tessera.__version__
extensions: Final = ["myst_parser"]
source_suffix: Final = {".md": "markdown"}
nitpicky: Final = True
myst_heading_anchors: Final = 4
"""Headings down to this level can be linked to, by the names that a repository's viewer gives them."""

html_theme: Final = "furo"
html_title: Final = f"Tessera {release}"
html_theme_options: Final = {"navigation_with_keys": True}
html_show_sphinx: Final = False
html_copy_source: Final = False
pygments_style: Final = "friendly"
highlight_language: Final = "text"
