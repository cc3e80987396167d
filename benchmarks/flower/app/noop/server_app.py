"""Flower's own FedAvg over all clients, from the tensors of a file; says as JSON lines when each round is over."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds."""
    told = context.run_config
    clients, events = int(told["num-clients"]), Path(str(told["events"]))

    def say(**event: object) -> None:
        with events.open("a") as file:
            file.write(json.dumps({"at_s": time.time(), **event}) + "\n")

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        say(round=server_round)  # 0 as the first one begins
        return MetricRecord({"round": server_round})

    with np.load(str(told["model"])) as model:
        first = ArrayRecord({name: Array(model[name]) for name in model.files})
    strategy = FedAvg(
        fraction_train=1.0,
        fraction_evaluate=0.0,
        min_train_nodes=clients,
        min_evaluate_nodes=clients,
        min_available_nodes=clients,
    )
    try:
        strategy.start(
            grid=grid, initial_arrays=first, num_rounds=int(told["num-rounds"]), evaluate_fn=evaluate
        )
    except BaseException as error:
        say(failed=f"{type(error).__name__}: {error}")
        raise
