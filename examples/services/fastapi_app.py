"""A FastAPI service that publishes to mist, and streams from it to browsers.

    pip install fastapi uvicorn mist-pubsub
    MIST_URL=tcp://127.0.0.1:1445 uvicorn fastapi_app:app

    curl -X POST http://127.0.0.1:8000/orders/eu -d 17
    curl -N http://127.0.0.1:8000/orders/eu

One client for each worker, for as long as it runs. A stream that is cut goes on where it was: the
browser sends the id of the last event that it has, and mist has those that came since.
"""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Request
from fastapi.responses import StreamingResponse

from mist.client import (
    BadArgument,
    Client,
    ClientError,
    Message,
    Position,
    Subscription,
    connect,
)
from mist.errors import CommandError


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    url = os.environ.get("MIST_URL", "tcp://127.0.0.1:1445")
    async with connect(url, secret=os.environ.get("MIST_SECRET"), wait=True) as client:
        app.state.mist = client
        yield


app = FastAPI(lifespan=lifespan)


@asynccontextmanager
async def problems_as_responses() -> AsyncIterator[None]:
    """What mist refuses is the client's fault; that mist isn't there isn't."""
    try:
        async with asyncio.timeout(10):  # while mist can't be reached, `store` waits
            yield
    except BadArgument as error:
        raise HTTPException(400, str(error)) from error
    except ClientError as error:
        raise HTTPException(503, str(error)) from error
    except TimeoutError as error:
        raise HTTPException(503, "mist doesn't answer") from error
    except CommandError as error:  # tags, data or a position that can't be
        raise HTTPException(400, str(error)) from error


@app.post("/orders/{region}", status_code=201)
async def create(region: str, request: Request) -> dict[str, int]:
    """Publish an order; answered once it is durable."""
    client: Client = request.app.state.mist
    data = await request.body()
    async with problems_as_responses():
        number = await client.store(["order", region], data)
    return {"id": number}


@app.get("/orders/{region}")
async def stream(
    region: str, request: Request, last_event_id: Annotated[str | None, Header()] = None
) -> StreamingResponse:
    """Orders as they come, as server-sent events."""
    events = orders(request.app.state.mist, region, position_of(last_event_id))
    async with problems_as_responses():
        first = await anext(events)  # subscribed; before the response begins, to tell if not

    async def all_events() -> AsyncIterator[str]:
        async with aclosing(events):
            yield first
            async for each in events:
                yield each

    return StreamingResponse(all_events(), media_type="text/event-stream")


async def orders(client: Client, region: str, since: Position | None) -> AsyncGenerator[str, None]:
    async with client.subscribe(["order", region], since=since) as subscription:
        # With where it begins: a browser that is cut before the first order comes back with that.
        yield f": connected\n{event_id(subscription)}\n"
        async for order in subscription:
            yield f"{event_id(subscription)}{event_data(order)}\n"


def event_id(subscription: Subscription) -> str:
    """Where the browser is that has all up to here; mist names the log, too, by its epoch."""
    position = subscription.position
    return "" if position is None else f"id: {position.epoch}:{position.id}\n"


def position_of(event_id: str | None) -> Position | None:
    """Behind the event with this id; None, from now on, where there is none."""
    found = re.fullmatch("(.+):([0-9]{1,16})", event_id or "")
    return None if found is None else Position(found[1], int(found[2]))


def event_data(message: Message) -> str:
    """Data of several lines is several lines of an event, however they end."""
    return "".join(f"data: {line}\n" for line in re.split("\r\n|\r|\n", message.text))
