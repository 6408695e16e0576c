"""Killing replicas of a Ray Serve app under load, to see whether anybody's answer is lost with them."""

from __future__ import annotations

import asyncio
import importlib
import logging
import random
from dataclasses import dataclass
from typing import Any

from findtta._processes import environment
from findtta.errors import MissingExtraError, OptionError

#: How Serve begins the names of its replicas' actors, and the namespace it keeps them in.
_PREFIX, _NAMESPACE = "SERVE_REPLICA::", "serve"


@dataclass(frozen=True)
class Killer:
    """Kills one replica every so often.

    Attributes:
        every: Seconds between kills, and before the first.
        limit: The most kills.
        deployment: Whose replicas are killed.
        app: The app of the deployment.
        seed: Decides which replica it is each time.
    """

    every: float
    limit: int = 100
    deployment: str = "Model"
    app: str = "findtta"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.every > 0:
            raise OptionError(f"kill_every must be a number of seconds above 0, got {self.every!r}.")
        if self.limit < 1:
            raise OptionError(f"kills must be at least 1, got {self.limit!r}.")

    def require_replicas(self) -> None:
        """Join the cluster, and raise unless the deployment has a replica there."""
        ray = connect()
        if not replicas(ray, self.deployment, self.app):
            raise OptionError(
                f"kill_every needs replicas of deployment {self.deployment!r} of app {self.app!r}, "
                f"but there are none. Replicas there: {_all_replicas(ray) or 'none'}."
            )

    async def into(self, killed: list[str]) -> None:
        """Kill until the limit is reached or the task is cancelled, adding the names of the killed to a list."""
        choice = random.Random(self.seed)
        for _ in range(self.limit):
            await asyncio.sleep(self.every)
            # In a thread: it waits for the cluster.
            name = await asyncio.to_thread(kill_replica, self.deployment, self.app, choice)
            if name is not None:
                killed.append(name)


def kill_replica(
    deployment: str = "Model", app: str = "findtta", choice: random.Random | None = None
) -> str | None:
    """Kill one replica of a deployment on the Ray cluster of this machine.

    Args:
        deployment: Whose replica.
        app: The app of the deployment.
        choice: Chooses the replica; None takes the first.

    Returns:
        The name of the actor that was killed, or None if there was none to kill.
    """
    ray = connect()
    names = replicas(ray, deployment, app)
    if not names:
        return None
    name = choice.choice(names) if choice else names[0]
    try:
        ray.kill(ray.get_actor(name, namespace=_NAMESPACE))
    except ValueError:  # it went by itself in the meantime
        return None
    return name


def replicas(ray: Any, deployment: str, app: str) -> list[str]:
    """Return the names of the actors that are replicas of a deployment, in alphabetical order."""
    return [name for name in _all_replicas(ray) if name.startswith(f"{_PREFIX}{app}#{deployment}#")]


def connect() -> Any:
    """Join the Ray cluster of this machine, or of ``$RAY_ADDRESS``, if that has not happened yet.

    Returns:
        The module ``ray``.

    Raises:
        MissingExtraError: If Ray is not installed.
        OptionError: If there is no cluster, or it does not let us in.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError(
            "killing replicas needs the 'serve' extra: pip install \"findtta[serve]\""
        ) from error
    if not ray.is_initialized():
        try:
            with environment(RAY_USAGE_STATS_ENABLED="0"):
                ray.init(address="auto", namespace=_NAMESPACE, logging_level=logging.ERROR, log_to_driver=False)
        except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise OptionError(
                f"kill_every needs a Ray cluster that can be joined, but there is none ({reason}). "
                "Start the server on Ray. If $RAY_ADDRESS names a cluster with a token, set $RAY_AUTH_MODE=token."
            ) from error
    return ray


def _all_replicas(ray: Any) -> list[str]:
    actors = ray.util.list_named_actors(all_namespaces=True)
    names = (actor["name"] for actor in actors if actor["namespace"] == _NAMESPACE)
    return sorted(name for name in names if name.startswith(_PREFIX))
