"""The command line of the cluster."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from . import binaries, lifecycle
from .layout import Layout


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description="A real Kubernetes on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="bring it up, unless it is")
    commands.add_parser("status", help="say what runs")
    commands.add_parser("down", help="end it and remove all of it but its logs")
    commands.add_parser("build", help="build the programs into the cache, nothing else")
    commands.add_parser("kubeconfig", help="print the path of the KUBECONFIG")
    load = commands.add_parser("load", help="make the images of archives known to the node")
    load.add_argument("archive", nargs="+", type=Path)
    execute = commands.add_parser("exec", help="run a command in the namespaces of the cluster")
    execute.add_argument("argv", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    layout = Layout.default()
    try:
        match arguments.command:
            case "up":
                lifecycle.up(layout)
                print(f"export KUBECONFIG={layout.kubeconfig}")
            case "status":
                print("\n".join(lifecycle.status(layout)))
            case "down":
                lifecycle.down(layout)
            case "build":
                binaries.build()
            case "kubeconfig":
                print(layout.kubeconfig)
            case "load":
                for archive in arguments.archive:
                    lifecycle.load(layout, archive)
            case "exec":
                words = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
                command = lifecycle.inside(layout, words)
                os.execv(command[0], command)
    except (binaries.MissingError, lifecycle.ClusterError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
