"""Django: what a transaction has done is published once it is committed, and not if it isn't.

    pip install django mist-pubsub
    MIST_URL=tcp://127.0.0.1:1445 python django_on_commit.py

A message that is published inside of a transaction may be there before what it tells of, or without
it. `on_commit` has Django wait; what it then calls must not fail, as the order is there already.
"""

import logging
import os
from functools import partial

import django
from django.conf import settings
from django.db import connection, transaction
from process_client import mist

from mist.client import ClientError

settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ.get("ORDERS", ":memory:"),
        }
    }
)
django.setup()

log = logging.getLogger(__name__)


def pay(order: int, region: str) -> None:
    """Book a payment, and tell of it."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO payment VALUES (%s, %s)", [order, region])
        transaction.on_commit(partial(announce, order, region))


def announce(order: int, region: str) -> None:
    try:
        mist().store(["order", region, "paid", f"order:{order}"], str(order))
    except ClientError:  # it may be told of by what looks for payments that were not
        log.exception("order %d is paid, and nobody was told", order)


if __name__ == "__main__":
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE payment (number INTEGER PRIMARY KEY, region TEXT)")
    pay(17, "eu")
    print("told of order 17")
