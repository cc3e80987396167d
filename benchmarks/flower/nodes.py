"""Clients of Flower that compute nothing, all in this process: `nodes.py HOST:PORT CLIENTS`.

One thread per client speaks through Flower's own connection: receives a message, pulls its objects, sends the model
back moved a little. Flower as deployed starts a process per client and one per message; this is what is left without.
"""

import os
import sys
import threading
import time

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable import inflatable_utils

try:
    from flwr.supercore.inflatable import inflatable_object as objects
except ImportError:
    from flwr.supercore import inflatable as objects
try:
    from flwr.supernode.fleet_http_connection import http_request_response

    OVER_HTTP = True
except ImportError:
    from flwr.client.grpc_rere_client.connection import grpc_request_response
    from flwr.common.retry_invoker import make_simple_grpc_retry_invoker

    OVER_HTTP = False

POLL_S = 3.0
"""What Flower's SuperNode sleeps when there is no message for it."""


def connection(address):
    """Flower's connection to a SuperLink, in plain text."""
    if OVER_HTTP:
        return http_request_response(address, True, None, None, None, None)
    return grpc_request_response(address, True, make_simple_grpc_retry_invoker())


def moved(array, client):
    """Every floating-point value larger by 1e-4 · (client + 1)."""
    return np.asarray(array + array.dtype.type(1e-4 * (client + 1))) if array.dtype.kind == "f" else array


def run(address, client):
    """One client; if it fails, so does the process."""
    try:
        with connection(address) as calls:
            print("registered", client, flush=True)
            serve(calls, client)
    except BaseException as error:
        print(f"error: client {client}: {type(error).__name__}: {error}", flush=True)
        os._exit(1)


def serve(calls, client):
    """Answer messages until the process ends."""
    _, receive, send, _, _, pull, push, confirm = calls
    while True:
        if (got := receive()) is None:
            time.sleep(POLL_S)
            continue
        head, tree = got
        run_id, number = head.metadata.run_id, head.metadata.message_id
        wanted = list({part.object_id for part in objects.iterate_object_tree(tree)})
        contents = inflatable_utils.pull_objects(
            wanted, pull_object_fn=lambda wanted_id, run_id=run_id: pull(run_id, wanted_id)
        )
        message = inflatable_utils.inflate_object_from_contents(number, contents)
        message.metadata.__dict__["_message_id"] = number
        confirm(run_id, number)
        answer(message, client, send, push)


def answer(message, client, send, push):
    """Send the received model back, moved a little."""
    arrays = {name: Array(moved(array.numpy(), client)) for name, array in message.content["arrays"].items()}
    content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 100})}
    reply, run_id = Message(RecordDict(content), reply_to=message), message.metadata.run_id
    with objects.no_object_id_recompute():
        reply.metadata.__dict__["_message_id"] = reply.object_id
        parts = objects.get_all_nested_objects(reply)
        told = send(reply, objects.get_object_tree(reply), 0.1)
        needed, session = told if OVER_HTTP else (told, None)
        for part in needed:
            where = (run_id, session) if OVER_HTTP else (run_id,)
            push(*where, part, parts[part].deflate())


def main():
    """Start all clients; the process ends when it is told to."""
    address, clients = sys.argv[1], int(sys.argv[2])
    threads = [threading.Thread(target=run, args=(address, client)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
