"""Lets `lit tests/ir` run these files in processes of their own; `test_files.py` runs them in one, which is quicker."""

# ruff: noqa: F821
# mypy: ignore-errors

import os
import sys

import lit.formats

config.name = "tessera-ir"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir"]
config.test_source_root = os.path.dirname(__file__)
config.environment["PYTHONPATH"] = os.path.join(config.test_source_root, "..", "..", "src")
config.substitutions.append(("tessera opt", f"{sys.executable} -m tessera opt"))
config.substitutions.append(("filecheck", f"{sys.executable} -m filecheck"))
