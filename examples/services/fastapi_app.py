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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Request
from fastapi.responses import StreamingResponse

from mist.client import BadArgument, Client, ClientError, Message, connect
from mist.errors import CommandError


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    url = os.environ.get("MIST_URL", "tcp://127.0.0.1:1445")
    async with connect(url, secret=os.environ.get("MIST_SECRET"), wait=True) as client:
        app.state.mist = client
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{region}", status_code=201)
async def create(region: str, request: Request) -> dict[str, int]:
    """Publish an order; answered once it is durable."""
    client: Client = request.app.state.mist
    data = await request.body()
    try:
        async with asyncio.timeout(10):  # while mist can't be reached, `store` waits
            return {"id": await client.store(["order", region], data)}
    except BadArgument as error:
        raise HTTPException(400, str(error)) from error
    except ClientError as error:
        raise HTTPException(503, str(error)) from error
    except TimeoutError as error:
        raise HTTPException(503, "mist doesn't answer") from error
    except CommandError as error:  # tags or data that can't be published
        raise HTTPException(400, str(error)) from error


@app.get("/orders/{region}")
async def stream(
    region: str, request: Request, last_event_id: Annotated[int | None, Header()] = None
) -> StreamingResponse:
    """Orders as they come, as server-sent events."""
    client: Client = request.app.state.mist

    async def events() -> AsyncIterator[str]:
        async with client.subscribe(["order", region], since=last_event_id) as orders:
            yield ": connected\n\n"
            async for order in orders:
                yield event(order)

    return StreamingResponse(events(), media_type="text/event-stream")


def event(message: Message) -> str:
    """A server-sent event; data of several lines is several lines there, however they end."""
    number = "" if message.id is None else f"id: {message.id}\n"
    data = "".join(f"data: {line}\n" for line in re.split("\r\n|\r|\n", message.text))
    return f"{number}{data}\n"
