"""The demo: a payments service, the scenes that are played against it over real sockets, and their verdict."""
