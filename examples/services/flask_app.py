"""A Flask view that publishes to mist.

pip install flask gunicorn mist-pubsub
MIST_URL=tcp://127.0.0.1:1445 gunicorn -w 4 --preload flask_app:app

curl -X POST http://127.0.0.1:8000/orders/eu -d 17
"""

from flask import Flask, Response, jsonify, request
from process_client import mist

from mist.client import BadArgument, ClientError
from mist.errors import CommandError

app = Flask(__name__)


@app.post("/orders/<region>")
def create(region: str) -> tuple[Response, int]:
    """Publish an order; answered once it is durable."""
    return jsonify(id=mist().store(["order", region], request.get_data())), 201


@app.errorhandler(BadArgument)
@app.errorhandler(CommandError)
def refused(error: Exception) -> tuple[Response, int]:
    return jsonify(error=str(error)), 400


@app.errorhandler(ClientError)
def unavailable(error: ClientError) -> tuple[Response, int]:
    return jsonify(error=str(error)), 503
