"""What helps to test code that stands on twiceproof, and twiceproof itself.

The explorer is a module of its own: ``python -m twiceproof.testing.explorer``.
"""
