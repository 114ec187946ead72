"""From a ``SimulatedCluster`` to a running simulation.

``spec`` reads and validates the object against the CRD, ``plan`` turns it into what the simulation core and the agents
need to know, a backend (``local``; Kubernetes later) starts the processes, ``report`` tells what came of it.
"""
