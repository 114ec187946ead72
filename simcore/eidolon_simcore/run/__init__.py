"""A run: from the agents' messages to a stated end.

`service` receives the messages (gRPC) and hands them to `simulation`, which keeps a `session` for each rank. A session
turns event records (`event_records`) into operations of the engine and prices them; `collectives` matches the calls of
a communicator's members, and `payloads` computes the bytes that small ones exchange. `status` says where the run
stands, `cause` why it ended.
"""
