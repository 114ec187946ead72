"""The engine: from lanes of work to times.

`interface` states what an engine is; `native` is the one in C++ (``simcore/native``). Everything else in the simulation
core knows only the interface. The tests compare the engine with a plain one in Python.
"""
