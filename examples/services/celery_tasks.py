"""A Celery task that tells mist what it has done.

    pip install 'celery[redis]' mist-pubsub
    MIST_URL=tcp://127.0.0.1:1445 celery -A celery_tasks worker --concurrency 4

    python -c 'from celery_tasks import pay; pay.delay("eu", 17)'

The broker is CELERY_BROKER, by default a Redis.
"""

import json
import os

from celery import Celery
from process_client import mist

from mist.client import ClientError

app = Celery("orders", broker=os.environ.get("CELERY_BROKER", "redis://127.0.0.1:6379/0"))


# An order may be told of twice where mist has stored it and its answer was lost: say which it is.
@app.task(autoretry_for=(ClientError,), retry_backoff=True, max_retries=8)
def pay(region: str, order: int) -> None:
    mist().store(["order", region, "paid"], json.dumps({"order": order, "process": os.getpid()}))
