"""A Flask application whose transfers are safe to retry.

python examples/flask_app.py, then twice:

curl -i http://127.0.0.1:8000/transfers -H 'Authorization: Bearer t-alice' -H 'Idempotency-Key: order-42' \
     -H 'Content-Type: application/json' -d '{"to": "bob", "amount": 5}'
"""

import functools

from flask import Flask, abort, g, request

from twiceproof.server.flask import Idempotency

TOKENS = {"t-alice": "alice", "t-bob": "bob"}

app = Flask(__name__)
idempotency = Idempotency(store="sqlite:///keys.db", principal=lambda: g.account)
idempotency.install(app)
moved: list[tuple[str, object]] = []


def login_required(view):
    @functools.wraps(view)
    def guarded(*args, **values):
        g.account = TOKENS.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if g.account is None:
            abort(401)
        return view(*args, **values)

    return guarded


@app.post("/transfers")
@login_required  # it runs before the claim: a revoked token reads no replay
@idempotency.operation(required=True)
def create_transfer():
    moved.append((g.account, request.get_json()))  # the effect: once per key and account
    return {"id": f"tr_{len(moved)}", "from": g.account}, 201


if __name__ == "__main__":
    app.run(port=8000)
