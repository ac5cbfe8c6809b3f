"""How HAProxy spreads decisions over 1 to 16 stand-ins that take 20 ms for each, one at a time.

python tests/serve/replicas_scaling.py [--seconds 8]

A stand-in is an engine that needs no core: what is measured is the front, until the cores that it shares with
clients and stand-ins run out. Prints a table.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from replicas import fakes  # noqa: E402

TURNS_A_SECOND = 50


def ask(url: str, clients: int, seconds: float, answers: multiprocessing.Queue[int]) -> None:
    """Ask by raw connections, which cost the cores least."""
    import http.client
    import json
    import threading

    body = json.dumps({"kind": "noul", "state": "turn", "question": "?"})
    host, counts = url.removeprefix("http://"), [0] * clients
    ended = time.monotonic() + seconds

    def one(number: int) -> None:
        connection = http.client.HTTPConnection(host, timeout=60)
        while time.monotonic() < ended:
            connection.request("POST", "/v1/decide", body)
            reply = connection.getresponse()
            assert reply.status == 200, reply.read()
            reply.read()
            counts[number] += 1
        connection.close()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers.put(sum(counts))


def measure(count: int, seconds: float) -> float:
    """Decisions a second by ``count`` stand-ins, with four clients for each."""
    with fakes(count) as found:
        answers: multiprocessing.Queue[int] = multiprocessing.Queue()
        begin = time.monotonic()
        asking = multiprocessing.Process(target=ask, args=(found.url, 4 * count, seconds, answers))
        asking.start()
        answered = answers.get()
        asking.join()
        return answered / (time.monotonic() - begin)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=8)
    options = parser.parse_args()
    print("replicas  decisions/s  of what they could")
    for count in (1, 2, 4, 8, 16):
        found = measure(count, options.seconds)
        print(f"{count:8}  {found:11.1f}  {found / (count * TURNS_A_SECOND):17.0%}", flush=True)
