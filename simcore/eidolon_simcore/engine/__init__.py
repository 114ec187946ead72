"""The engine: from lanes of work to times.

`interface` states what an engine is; `dataflow` is the plain Python one. Everything else in the simulation core talks
to the interface only.
"""
