"""From a ``SimulatedCluster`` to a running simulation.

``spec`` reads the object and validates it against the CRD. ``plan`` turns it into what the simulation core and the
agents need to know. A backend (``local`` or ``kubernetes``) starts the processes, and ``report`` shows the result.
"""
