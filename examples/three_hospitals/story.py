"""The example itself, act by act: what is typed on which host, and what must come of it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .hosts import Host, Switch
from .images import DEPARTMENTS, write_images
from .proof import Disturbed, prove
from .transcript import StoryError, Transcript, wait_until

HOSPITALS = ("north", "east", "south")
NAMES = ("hub", *HOSPITALS, "west", "ops")
ROUNDS = 16
OPERATOR = "--server hub:50051 --tls tls"
PAGE = "https://hub:50053"
AS_OPERATOR = "--cacert tls/ca.pem --cert tls/cert.pem --key tls/key.pem"


class Story:
    """One federation, from bare hosts to personal models."""

    def __init__(self, folder: Path, transcript: Transcript) -> None:
        self._folder = folder
        self._show = transcript
        self._switch = Switch(folder, NAMES)
        self._hosts = self._switch.hosts
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._disturbed = Disturbed()

    def tell(self) -> None:
        """Everything, in order.

        Raises:
            StoryError: Something did not go as it says here.
        """
        self._hosts_and_images()
        self._hub_prepares()
        self._sites_join()
        self._operator_watches()
        self._revoked_site()
        self._cable()
        self._power()
        self._results()
        prove(self._switch, self._show, self._folder, HOSPITALS, self._disturbed)

    def _at(self, name: str) -> Host:
        return self._hosts[name]

    def _carry(self, source: str, path: str, target: str, as_name: str) -> None:
        """Take a file or folder from one host to another by hand, as on a stick."""
        start, end = self._at(source).folder / path, self._at(target).folder / as_name
        if start.is_dir():
            shutil.copytree(start, end)
        else:
            shutil.copy2(start, end)
        self._show.say(f"*`{path}` is carried from `{source}` to `{target}:{as_name}` by hand.*")

    # -- before the run ---------------------------------------------------------------------------

    def _hosts_and_images(self) -> None:
        show = self._show
        show.heading("Six hosts")
        show.say(
            "A hub, three hospitals, a fourth site and an operator's workstation: each has its own network interface, "
            "processes, name and disk (`/srv`). The images are handwritten digits, standing in for a hospital's."
        )
        counts = write_images(
            self._at("hub").folder / "public", {name: self._at(name).folder / "images" for name in HOSPITALS}
        )
        show.run_on_switch("ip -brief link show master br0")
        for name in HOSPITALS:
            mostly = ", ".join(map(str, DEPARTMENTS[name]))
            show.say(f"`{name}` has {counts[name]} images, mostly of {mostly}:")
            show.run(self._at(name), "hostname; ip -brief -4 address show eth0; du -sh images")
            show.run(self._at(name), "fkd-client check --data images")
        show.say(
            "No host sees another's disk: the folder of this machine that holds them all is empty to each."
        )
        disks = str(self._folder / "hosts")
        for name in NAMES:
            self._require(
                show.run(self._at(name), f"ls -A {disks}") == "", f"{name} sees no other host's disk"
            )

    def _hub_prepares(self) -> None:
        show, hub = self._show, self._at("hub")
        show.heading("The coordinator")
        show.say(
            "The hub has public images only: labelled ones train the extractor that all share, some are anchors, the "
            "rest is the test set. Then it becomes a certificate authority, and makes a token for each hospital."
        )
        show.run(
            hub,
            "fkd-shards create --source folder:public --clients 1 --partition iid --seed 0 --image-size 16 "
            "--anchors 80 --public 160 --test-fraction 0.3 --out shards",
        )
        show.run(hub, "fkd-server certs init --host hub")
        show.run(hub, "fkd-server certs issue alice --role operator --out alice")
        for name in HOSPITALS:
            show.run(hub, f"fkd-server token create {name} --out {name}.token")
        for name in HOSPITALS:
            self._carry("hub", f"{name}.token", name, "token")
        self._carry("hub", "alice", "ops", "tls")
        show.run(self._at("ops"), "ls -R /srv")

    def _serve(self) -> None:
        self._running["hub"] = self._show.start(
            self._at("hub"),
            "fkd-server --tls tls --extractor pretrain --test shards/test --min-clients 3 --clients-per-round 1 "
            f"--rounds {ROUNDS} --residual-every 8 --local-steps 40 --teacher-trees 30 --finetune-epochs 1 "
            "--heartbeat-s 1 --heartbeat-limit-s 4 --http-host 0.0.0.0 --http-token @page.token --serve "
            ">> server.out 2>> server.log",
        )

    # -- the run ----------------------------------------------------------------------------------

    def _sites_join(self) -> None:
        show = self._show
        show.heading("The run begins")
        show.say(
            "The second port shows the run to who has its token, or an operator's certificate. With `--serve` the "
            "coordinator stays after the run's end."
        )
        show.run(self._at("hub"), "openssl rand -hex 24 > page.token")
        self._serve()
        show.say("Each hospital makes its key itself, gets a certificate for its token, and takes part:")
        for name in HOSPITALS:
            self._running[name] = show.start(
                self._at(name),
                "fkd-client --join @token --tls tls --server hub:50051 --data images --threads 1 "
                "> client.out 2> client.log",
            )
        self._wait("two rounds are over", lambda: self._rounds_done() >= 2, within_s=180)

    def _operator_watches(self) -> None:
        show, ops, north = self._show, self._at("ops"), self._at("north")
        show.heading("The operator watches, and pauses")
        show.say(
            "`ops` holds nothing but the operator's certificate. A hospital's own certificate opens neither the "
            "commands nor the page."
        )
        show.run(ops, f"fkd-server pause {OPERATOR}")
        self._wait("the open phase ends", lambda: not self._status()["phase"])
        show.run(ops, f"fkd-server status {OPERATOR}")
        show.run(ops, f"fkd-server rounds {OPERATOR}")
        show.run(ops, f"curl --silent {AS_OPERATOR} {PAGE}/metrics | grep '^fkd_client'")
        show.run(
            self._at("hub"),
            'curl --silent --cacert tls/ca.pem --header "Authorization: Bearer $(cat page.token)" '
            f"{PAGE}/metrics | grep -E '^fkd_(ready|paused|round) '",
        )
        show.run(north, f"fkd-server status {OPERATOR}", code=4)
        show.run(north, f"curl --silent {AS_OPERATOR} {PAGE}/api/status")
        show.run(north, f"curl --silent --cacert tls/ca.pem {PAGE}/readyz")

    def _revoked_site(self) -> None:
        show, hub, west = self._show, self._at("hub"), self._at("west")
        show.heading("A fourth site is turned away")
        paused_after = self._rounds_done()
        show.run(hub, "fkd-server certs issue west --out west")
        self._carry("hub", "west", "west", "tls")
        self._carry("hub", "public", "west", "images")
        show.run(hub, "fkd-server certs revoke west")
        show.run(
            west,
            "fkd-client --tls tls --server hub:50051 --data images",
            code=4,
        )
        self._require(self._rounds_done() == paused_after, "a paused run opens no round")
        show.say("Meanwhile no round was opened: the run is paused.")

    def _cable(self) -> None:
        show, ops = self._show, self._at("ops")
        show.heading("A cable is pulled")
        show.run(ops, f"fkd-server resume {OPERATOR}")
        first = self._next_round()
        show.run_on_switch("ip link set south down")
        show.say(
            "The round that is open waits for `south` until it counts as gone, and the run goes on with two hospitals."
        )
        self._wait("a round without south", lambda: self._last_round_without("south"))
        show.run(ops, f"fkd-server pause {OPERATOR}")
        show.run(ops, f"fkd-server clients {OPERATOR}")
        show.run_on_switch("ip link set south up")
        self._wait("south is back", lambda: self._client("south")["alive"])
        self._disturbed.cable = range(first, self._next_round() + 1)
        show.run(ops, f"fkd-server clients {OPERATOR}")

    def _power(self) -> None:
        show, ops, hub = self._show, self._at("ops"), self._at("hub")
        show.heading("The hub is killed")
        show.run(ops, f"fkd-server resume {OPERATOR}")
        self._wait("a phase is open", lambda: bool(self._status()["phase"]))
        show.run(hub, "kill -KILL $(cat run/*/lock)")
        self._require(self._running["hub"].wait(30) == -signal.SIGKILL, "the coordinator was killed")
        show.say("The same command goes on with the same round; the hospitals notice and wait.")
        self._serve()
        self._wait("the run goes on", lambda: self._status()["serving_s"] > 0)
        show.run(hub, "grep run_resumed server.log")
        resumed = json.loads(hub.run("grep run_resumed server.log").output)
        self._disturbed.kill = int(resumed["round"])

    def _results(self) -> None:
        show, hub, ops = self._show, self._at("hub"), self._at("ops")
        show.heading("Results")
        self._wait("the run is over", lambda: self._status()["state"] == "completed", within_s=180)
        for name in HOSPITALS:
            self._require(self._running[name].wait(60) == 0, f"{name} ends with exit code 0")
        show.say(
            "Every hospital has ended by itself, with exit code 0, and has a model of its own, which never leaves it."
        )
        for name in HOSPITALS:
            some = f"images/{DEPARTMENTS[name][0]}"
            show.run(self._at(name), f"fkd-client predict $(ls {some}/*.png | head -n 3)")
        show.say("The operator takes the global model, extractor included, and ends the coordinator's stay:")
        show.run(ops, f"fkd-server export {OPERATOR} --format safetensors --out model.safetensors")
        show.run(ops, f"fkd-server status {OPERATOR}")
        show.run(ops, f"fkd-server events {OPERATOR} | tail -n 12")
        show.run(hub, "kill -TERM $(cat run/*/lock)")
        self._require(self._running["hub"].wait(30) == 0, "the coordinator ends with exit code 0")
        show.run(hub, "cat server.out")

    # -- looking on, unseen by the reader -----------------------------------------------------------

    def _wait(self, what: str, holds: Callable[[], bool], within_s: float = 90.0) -> None:
        def holds_now() -> bool:
            for name, process in self._running.items():
                self._require(process.poll() in (None, 0), f"{name} goes on")
            try:
                return holds()
            except LookupError:  # nobody answers yet
                return False

        wait_until(what, holds_now, within_s=within_s)

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise StoryError(f"not so: {what}")

    def _rounds_done(self) -> int:
        return int(self._status()["rounds_done"])

    def _next_round(self) -> int:
        """The round after the last one that is over."""
        return int(self._rounds()[-1]["round"]) + 1

    def _client(self, name: str) -> dict[str, Any]:
        return next(client for client in self._status()["clients"] if client["name"] == name)

    def _last_round_without(self, name: str) -> bool:
        return name not in self._rounds()[-1]["phases"][0]["returned"]

    def _status(self) -> dict[str, Any]:
        return self._ask("status")

    def _rounds(self) -> list[dict[str, Any]]:
        return list(self._ask("rounds")["rounds"])

    def _ask(self, what: str) -> dict[str, Any]:
        """What the hub answers an operator; nothing while it does not."""
        answer = self._at("ops").run(f"curl --silent --fail --max-time 5 {AS_OPERATOR} {PAGE}/api/{what}")
        return dict(json.loads(answer.output)) if answer.code == 0 else {}
