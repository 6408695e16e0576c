"""A Ray cluster of several nodes on this machine with the Ray Serve application on it, for the load test.

``python benchmarks/loadtest_cluster.py --kill-node-every 120`` prints the URL and its own process, for ``--url``
and ``--pid`` of ``loadtest.py``, and serves until it is stopped. Every 120 seconds a node is killed with all that
runs on it, and another one started.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections import deque
from typing import Any

import ray
from ray import serve
from ray.cluster_utils import Cluster

from findtta.serve import Settings
from findtta.serve.on_ray import APP_NAME, build

_MEMORY = {"object_store_memory": 128 * 2**20}


def main() -> int:
    """Serve until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="port of the proxies (default: 8000)")
    parser.add_argument("--nodes", type=int, default=2, help="nodes besides the head (default: 2)")
    parser.add_argument("--replicas", type=int, default=2, help="replicas of each deployment (default: 2)")
    parser.add_argument("--kill-node-every", type=float, metavar="S", help="seconds between kills of a node")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0", OMP_NUM_THREADS="1")
    cluster: Any = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **_MEMORY}
    )
    try:
        # Room for all replicas on the nodes that are left when one is killed.
        room = -(-2 * arguments.replicas // max(arguments.nodes - 1, 1))
        nodes = deque(cluster.add_node(num_cpus=room, **_MEMORY) for _ in range(arguments.nodes))
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        serve.start(proxy_location="EveryNode", http_options={"host": "127.0.0.1", "port": arguments.port})
        serve.run(build(Settings(ray_address="auto", replicas=arguments.replicas)), name=APP_NAME)
        print(f"url http://127.0.0.1:{arguments.port} pid {os.getpid()}", flush=True)
        never, killed = threading.Event(), 0
        while not never.wait(arguments.kill_node_every):
            cluster.remove_node(nodes.popleft(), allow_graceful=False)
            nodes.append(cluster.add_node(num_cpus=room, **_MEMORY))
            killed += 1
            print(f"nodes killed and replaced: {killed}", flush=True)
    except KeyboardInterrupt:
        return 0
    finally:
        ray.shutdown()
        cluster.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
