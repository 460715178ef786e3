"""The explorer: every interleaving of a few requests, up to a bound, on the rules that ship.

Run it with ``python -m twiceproof.testing.explorer``.
"""
