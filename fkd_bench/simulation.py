"""A federation within one process: the same coordinator and clients as objects, messages serialised all the same."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fkd_bench.federation import SAY_WAITING_S, Federation, FederationResult, collect_result
from fkd_bench.narrator import Narrator
from fkd_common.errors import MethodError
from fkd_common.settings import load_settings
from fkd_server.evaluation import Evaluator
from fkd_server.run import EvaluatorMaker, assemble

if TYPE_CHECKING:
    from fkd_client.teacher import TeacherTrainer


def run_inprocess(
    federation: Federation,
    narrator: Narrator,
    evaluator: EvaluatorMaker = Evaluator,
    teach: TeacherTrainer | None = None,
) -> FederationResult:
    """The same coordinator and clients as objects of this process; messages are serialised all the same.

    Args:
        federation: What to run.
        narrator: Told what happens.
        evaluator: Makes what scores models on the test set.
        teach: Trains FKD-RTM's teachers (default: as every client does).
    """
    from fkd_client.threads import limit_threads

    limit_threads(federation.settings.threads)
    from fkd_bench.inprocess import InProcessTransport
    from fkd_client.client import Client, ClientOptions
    from fkd_client.teacher import train_teacher
    from fkd_server.memory import trim_heap
    from fkd_server.settings import ServerSettings

    started = time.monotonic()
    settings = federation.settings
    flags = ["--config", str(federation.write_config()), *federation.server_flags]
    server_settings = load_settings(ServerSettings, "fkd-server", flags, use_environment=False)
    narrator.narrate_logs(federation.folder / "logs")
    run = assemble(server_settings, federation.cache / "embeddings", evaluator=evaluator)
    turns = threading.Semaphore(max(1, (os.cpu_count() or 1) // settings.threads))

    def take_part(name: str) -> None:
        options = ClientOptions(
            data=str(federation.shards / name),
            name=name,
            device="cpu",
            threads=settings.threads,
            test=federation.shards / "test",
            max_bad=0.01,
            patience_s=60.0,
            runs=federation.folder / "run",
            cache=federation.cache / "embeddings",
            artifacts=federation.artifacts(run.run_id, name),
            turn=lambda: turns,
            teach=teach or train_teacher,
        )
        client = Client(
            options, InProcessTransport(run.service, run.config.heartbeat_s), narrator.quiet_display()
        )
        try:
            client.run()
        finally:
            client.close()

    over = threading.Event()
    ticker = threading.Thread(target=_tick_until, args=(run.service, over), daemon=True)
    ticker.start()
    try:
        with ThreadPoolExecutor(settings.clients) as pool:
            outcomes = [pool.submit(take_part, name) for name in federation.client_names]
            while wait(outcomes, SAY_WAITING_S).not_done:
                working = [n for n, o in zip(federation.client_names, outcomes, strict=True) if not o.done()]
                if run.service.everyone_left():
                    narrator.say(f"{', '.join(working)} still at the personal model")
                elif narrator.silent_s() >= SAY_WAITING_S:
                    narrator.say(f"waiting: {run.service.waiting_for()}")
            failures = [outcome.exception() for outcome in outcomes]
        for failure in failures:
            if failure is not None:
                raise failure
        run.finish()
    finally:
        over.set()
        if run.evaluator is not None:
            run.evaluator.kill()
        trim_heap()  # a process that runs one after another would grow by the leavings of their threads
    return collect_result(federation, run.run_id, time.monotonic() - started)


def _tick_until(service: Any, over: threading.Event) -> None:
    with suppress(MethodError):  # the clients' calls raise it
        while not over.wait(0.5):
            service.tick()
