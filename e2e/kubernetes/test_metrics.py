"""Metrics of a run in a cluster: a real Prometheus, every query of every dashboard, figures as in the summary.

Prometheus (Debian's package) runs beside the cluster and scrapes the core's ports through the API server, with the
namespace as label as a ServiceMonitor gives it.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.cluster import binaries
from e2e.cluster.layout import REPOSITORY
from e2e.kubernetes.conftest import Namespace
from e2e.observe.prometheus import BOARDS, filled, get, panel_queries, serve

EXAMPLE = REPOSITORY / "examples" / "ddp-2x2.yaml"


@contextlib.contextmanager
def api_proxy(namespace: Namespace) -> Iterator[str]:
    """HOST:PORT at which the API server can be read without credentials."""
    kubeconfig = f"--kubeconfig={namespace.kubectl.kubeconfig}"
    command = [binaries.program("kubectl"), kubeconfig, "proxy", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip().rpartition(" ")[2]  # Starting to serve on HOST:PORT
        finally:
            process.terminate()


def test_dashboards_show_a_run_of_the_cluster(namespace: Namespace, torch: str, tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all(EXAMPLE.read_text()))
    (cluster,) = (document for document in documents if document["kind"] == "SimulatedCluster")
    name = cluster["metadata"]["name"]
    cluster["spec"]["workload"]["args"] = ["--steps", "40"]
    cluster["spec"]["workload"]["samplesPerStep"] = 32
    namespace.run("create", "configmap", "ddp", f"--from-file={REPOSITORY / 'examples' / 'ddp.py'}")
    with api_proxy(namespace) as api:
        pod = f"/api/v1/namespaces/{namespace.name}/pods/{name}-core"
        config = f"""
scrape_configs:
  - job_name: core
    metrics_path: {pod}:8080/proxy/metrics
    static_configs: [{{targets: ["{api}"], labels: {{namespace: {namespace.name}}}}}]
  - job_name: dcgm
    honor_labels: true
    metrics_path: {pod}:9400/proxy/metrics
    static_configs: [{{targets: ["{api}"]}}]
"""
        with serve(config, tmp_path) as prometheus:
            namespace.apply(*documents)
            namespace.wait_for_phase(name, "Succeeded", timeout_s=300)
            summary = get(f"http://{api}{pod}:8080/proxy/summary")
            at = prometheus.last_step_at(name)
            empty = [
                (board.stem, title, expr)
                for board in BOARDS
                for title, expr in panel_queries(board)
                if not prometheus.query(filled(expr, name, "1m", namespace.name), at)
            ]
            assert empty == []
            last = summary["steps"][int(prometheus.value(f'eidolon_step_last_index{{run="{name}"}}', at)) - 1]
            for metric, value in (
                ("eidolon_step_last_duration_seconds", last["time_ns"] / 1e9),
                ("eidolon_step_last_tokens_per_second", last["tokens_per_s"]),
                ("eidolon_mfu_ratio", last["mfu"]),
            ):
                assert prometheus.value(f'{metric}{{run="{name}"}}', at) == pytest.approx(value), metric
            # Not the instant: the scrape just before it may be one that the API server did not answer.
            fields = f'DCGM_FI_DEV_FB_USED{{pod="{name}-server-0", gpu="0"}}'
            of_pod = prometheus.query(f"last_over_time({fields}[1m])", at)
            assert [sample["metric"]["namespace"] for sample in of_pod] == [namespace.name]
