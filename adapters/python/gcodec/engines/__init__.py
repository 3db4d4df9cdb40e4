"""Inference engines and further trainers: one module for each, by its own extension points.

Each module needs the library of its name. Nothing here is imported by the rest of the package.
"""
