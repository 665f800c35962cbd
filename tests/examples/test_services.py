"""The examples of services: run as their users run them, with real servers and real forks."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from mist.client import sync
from tests.ports import free_port
from tests.processes import Process, environment, serving
from tests.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples" / "services"


@contextmanager
def run(
    arguments: Sequence[str], process: Process, tmp_path: Path, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """A program of the examples' folder, until the end of the block; its output in a file."""
    path = f"{EXAMPLES}{os.pathsep}{environment().get('PYTHONPATH', '')}"
    with (tmp_path / "output").open("w+") as output:
        popen = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=EXAMPLES,
            env={**environment(), "PYTHONPATH": path, "MIST_URL": process.urls[0], **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield popen
        except BaseException:
            print((tmp_path / "output").read_text())
            raise
        finally:
            popen.terminate()
            popen.wait(20)


def post(url: str, body: str, headers: Mapping[str, str] = {}) -> tuple[int, dict[str, object]]:
    request = urllib.request.Request(url, body.encode(), {"Content-Type": "text/plain", **headers})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def status_of(request: str | urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def event_of(stream: IO[bytes]) -> list[str]:
    """The lines of the next block of an event stream."""
    return [line.decode()[:-1] for line in iter(stream.readline, b"\n")]


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def test_a_fastapi_service_publishes_and_streams(process: Process, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with run(["-m", "uvicorn", "--port", str(port), "fastapi_app:app"], process, tmp_path):
        wait_until(lambda: answers(f"{url}/openapi.json"))
        with urllib.request.urlopen(f"{url}/orders/fast", timeout=20) as stream:
            begin = event_of(stream)
            assert begin.pop(0) == ": connected"
            status, body = post(f"{url}/orders/fast", "17")
            assert status == 201
            post(f"{url}/orders/elsewhere", "18")
            id_, data = event_of(stream)
            assert id_.startswith("id: ")
            assert id_.endswith(f":{body['id']}")
            assert data == "data: 17"
        # A browser that comes back says what it has, if it is nothing but where it began.
        post(f"{url}/orders/fast", "19")
        for known, expected in ((begin[0], ["data: 17", "data: 19"]), (id_, ["data: 19"])):
            again = urllib.request.Request(
                f"{url}/orders/fast", headers={"Last-Event-ID": known.removeprefix("id: ")}
            )
            with urllib.request.urlopen(again, timeout=20) as stream:
                assert event_of(stream)[0] == ": connected"
                assert [event_of(stream)[1] for _ in expected] == expected
        for of_no_log in ("1", "x:" + "9" * 16, "x:" + "9" * 5_000, "a b:1"):
            odd = urllib.request.Request(f"{url}/orders/odd", headers={"Last-Event-ID": of_no_log})
            assert status_of(odd) in {200, 400}
        assert status_of(f"{url}/orders/a,b") == 400
        assert post(f"{url}/orders/a,b", "x")[0] == 400


def test_an_order_can_not_forge_events_of_the_fastapi_stream(
    process: Process, tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with run(["-m", "uvicorn", "--port", str(port), "fastapi_app:app"], process, tmp_path):
        wait_until(lambda: answers(f"{url}/openapi.json"))
        with urllib.request.urlopen(f"{url}/orders/forged", timeout=20) as stream:
            event_of(stream)
            status, body = post(f"{url}/orders/forged", "a\rid: 99\revent: forged\r\rb")
            assert status == 201
            id_, *data = event_of(stream)
    assert id_.endswith(f":{body['id']}")
    assert data == [
        "data: a",
        "data: id: 99",
        "data: event: forged",
        "data: ",
        "data: b",
    ]


def test_the_fastapi_service_says_503_while_mist_is_away(
    own_process: Process, tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with run(["-m", "uvicorn", "--port", str(port), "fastapi_app:app"], own_process, tmp_path):
        wait_until(lambda: answers(f"{url}/openapi.json"))
        assert post(f"{url}/orders/eu", "17")[0] == 201
        own_process.stop(signal.SIGKILL)
        assert post(f"{url}/orders/eu", "18")[0] == 503


@pytest.mark.parametrize("program", ["flask_app:app", "django_view:application"])
def test_a_wrong_secret_of_the_service_is_not_blamed_on_who_orders(
    tmp_path: Path, program: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the-secret-of-this-server")
    secret.chmod(0o600)
    port = free_port()
    arguments = ["-m", "gunicorn", "-w", "1", "-b", f"127.0.0.1:{port}", program]
    with (
        serving(tmp_path / "data", "--secret-file", str(secret)) as process,
        run(arguments, process, tmp_path, MIST_SECRET="another"),
    ):
        url = f"http://127.0.0.1:{port}/orders/eu"
        wait_until(lambda: answers(url))
        status, body = post(url, "17")
        assert (status, body["error"]) == (503, "access denied: the secret is wrong")


@pytest.mark.parametrize("program", ["flask_app:app", "django_view:application"])
def test_a_view_publishes_from_each_forked_worker(
    process: Process, tmp_path: Path, program: str
) -> None:
    port = free_port()
    tag = program.partition("_")[0]
    arguments = ["-m", "gunicorn", "-w", "3", "--preload", "-b", f"127.0.0.1:{port}", program]
    with (
        sync.connect(process.urls[0]) as client,
        client.subscribe(["order", tag], timeout=20) as orders,
        run(arguments, process, tmp_path),
    ):
        url = f"http://127.0.0.1:{port}/orders/{tag}"
        wait_until(lambda: answers(url))
        before = client.who().connected
        for number in range(40):
            status, body = post(url, str(number))
            assert (status, sorted(body)) == (201, ["id"])
        texts = [next(orders).text for _ in range(40)]
        assert sorted(texts) == sorted(map(str, range(40)))
        assert client.who().connected > before
        status, body = post(f"http://127.0.0.1:{port}/orders/a,b", "x")
        assert status == 400
        assert "comma" in str(body["error"])


def test_what_django_rolls_back_is_not_published(process: Process, tmp_path: Path) -> None:
    script = """
from django_on_commit import connection, pay, transaction
connection.cursor().execute("CREATE TABLE payment (number INTEGER PRIMARY KEY, region TEXT)")
pay(1, "commit")
try:
    with transaction.atomic():
        pay(2, "commit")
        raise LookupError
except LookupError:
    pass
try:
    pay(1, "commit")
except Exception as error:
    print(type(error).__name__)
pay(3, "commit")
"""
    with (
        sync.connect(process.urls[0]) as client,
        client.subscribe(["order", "commit", "paid"], timeout=20) as orders,
        run(["-c", script], process, tmp_path) as popen,
    ):
        assert popen.wait(30) == 0
        assert [next(orders).text for _ in range(2)] == ["1", "3"]
    assert (tmp_path / "output").read_text() == "IntegrityError\n"


def test_a_celery_task_publishes_from_each_forked_worker(process: Process, tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    queue.mkdir()
    (tmp_path / "celery.py").write_text("")
    script = (
        "from celery_tasks import app, pay; import sys; "
        f"app.conf.broker_transport_options = dict(data_folder_in={str(queue)!r}, "
        f"data_folder_out={str(queue)!r}, control_folder={str(tmp_path / 'control')!r}); "
    )
    broker = {"CELERY_BROKER": "filesystem://"}
    worker = "app.worker_main(['worker', '--concurrency', '3', '--loglevel', 'warning'])"
    with (
        sync.connect(process.urls[0]) as client,
        client.subscribe(["order", "paid"], timeout=60) as orders,
        run(["-c", script + worker], process, tmp_path, **broker),
    ):
        other = tmp_path / "caller"
        other.mkdir()
        calls = "[pay.delay('eu', number) for number in range(30)]"
        with run(["-c", script + calls], process, other, **broker) as caller:
            assert caller.wait(30) == 0
        found = [json.loads(next(orders).text) for _ in range(30)]
        assert sorted(each["order"] for each in found) == list(range(30))
        assert len({each["process"] for each in found}) > 1


def test_what_the_examples_say_to_install_is_what_they_import() -> None:
    for path in EXAMPLES.glob("*.py"):
        text = path.read_text()
        said = re.search(r"pip install (.*)", text)
        imported = {
            "flask": "from flask",
            "fastapi": "from fastapi",
            "django": "from django",
            # With the extra for its broker, which celery alone can't speak to.
            "'celery[redis]'": "from celery",
        }
        for package, line in imported.items():
            assert (line in text) == (said is not None and package in said[1].split()), path.name


def test_a_client_that_is_forked_while_it_connects_is_connected_again(
    process: Process, tmp_path: Path
) -> None:
    script = """
import os, sys, threading
from process_client import mist
threads = [threading.Thread(target=mist) for _ in range(3)]
for each in threads: each.start()
child = os.fork()
mist().store(["order", "fork"], str(os.getpid()))
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for each in threads: each.join()
else:
    os._exit(0)
"""
    with (
        sync.connect(process.urls[0]) as client,
        client.subscribe(["order", "fork"], timeout=20) as orders,
        run(["-W", "ignore", "-c", script], process, tmp_path) as popen,
    ):
        assert popen.wait(30) == 0
        assert len({next(orders).text for _ in range(2)}) == 2
