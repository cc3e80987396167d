"""`fkd-bench load`: flags in, one JSON object out."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fkd_bench.load.figures import Json, ratios
from fkd_bench.load.flower_run import Flower, measure_flower
from fkd_bench.load.model import STUDENT, exchanged_tensors
from fkd_bench.load.own_run import measure_idle, measure_kill, measure_own
from fkd_bench.load.settings import LoadSettings, Victim
from fkd_bench.narrator import Narrator
from fkd_common.config import FKD_RTM
from fkd_common.errors import ExitCode, UsageError
from fkd_common.settings import load_settings
from fkd_common.tensors import Tensors


def load(arguments: list[str]) -> int:
    """Entry point of the verb; returns the exit code."""
    # Its flags share names with other programs' variables that mean other things, such as FKD_TLS.
    settings = load_settings(LoadSettings, "fkd-bench load", arguments, use_environment=False)
    if settings.print_config:
        print(settings.to_yaml(), end="")
        return ExitCode.OK
    if settings.method == FKD_RTM and settings.model != STUDENT:
        raise UsageError(f"--method {FKD_RTM} exchanges a student: leave out --model {settings.model}")
    _refuse_what_goes_unused(settings)
    if settings.kill is Victim.CLIENT and settings.clients < 2:
        raise UsageError("--kill client needs clients that stay: expected --clients 2 or more")
    tensors = exchanged_tensors(settings.model)
    flowers = Flower.installed(settings) if settings.against else []
    print(json.dumps(_measured(settings, tensors, flowers), indent=1))
    return ExitCode.OK


def _refuse_what_goes_unused(settings: LoadSettings) -> None:
    if settings.idle_s and settings.kill:
        raise UsageError("--idle-s measures clients that wait, --kill a round: leave out one of them")
    unused = {
        "--idle-s": ("rounds", "wire_rounds", "against", "flower_python") if settings.idle_s else (),
        "--kill": ("processes", "wire_rounds", "against", "flower_python") if settings.kill else (),
    }
    for flag, names in unused.items():
        given = [name for name in names if name in settings.model_fields_set]
        if given:
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UsageError(f"{flag} measures our own coordinator alone, without {flags}: leave out {flags}")


def _measured(settings: LoadSettings, tensors: Tensors, flowers: Sequence[Flower]) -> Json:
    """Our figures or, beside others', those of all by name and the ratios."""
    narrator = Narrator()
    if settings.idle_s:
        narrator.say(f"{settings.clients} no-op clients that only poll")
        return measure_idle(settings, tensors, narrator)
    rounds = "" if settings.kill else f"{settings.rounds} "
    narrator.say(f"{settings.clients} no-op clients, {rounds}rounds of {settings.model}")
    if settings.kill is not None:
        return measure_kill(settings, tensors, narrator)
    ours = measure_own(settings, tensors, narrator)
    if not flowers:
        return ours
    theirs = {flower.name: measure_flower(settings, tensors, flower, narrator) for flower in flowers}
    compared = {name: ratios(ours, found) for name, found in theirs.items()}
    return {"fkd": ours, **theirs, "ratio_to_fkd": compared}
