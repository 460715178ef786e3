"""The demo's Flask service, broken on purpose."""

import os

from flask import Flask

from twiceproof.cli._demo import service_flask


def not_installed() -> Flask:
    """Its views are marked, and the layer that they need is missing."""
    app = Flask("payments")
    app.register_blueprint(service_flask.payments)
    service_flask.ledger.create()
    service_flask.ledger.enter(os.getpid())
    return app
