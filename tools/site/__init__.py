"""The documentation as a site: `python -m tools.site` builds it into build/site, without a warning or not at all."""
