"""A run: from the agents' messages to a stated end.

`service` receives the messages (gRPC) and hands them to `simulation`, which connects the parts of a run:

* `server` and `membership` say which servers and ranks take part, `outbox` sends what goes back to them;
* a `session` for each rank turns its event records (`event_records`) into operations of the engine. `validation` checks
  them, `host_times` and `pricing` give them times, `effects` handles those that reach beyond their rank, `delivery`
  answers. What sessions share is their `world`;
* `communicators` are made and divided, `collectives` matches the calls of their members, and `exchanges` moves the
  bytes of small ones, which `payloads` computes;
* `final_results` takes what has become final to the books and the report;
* `watchdogs` give up a run that cannot go on (`who_waits` says who waits for whom), `ending` ends it with a `cause`;
* `views` shows it to readers: status, snapshot, summary.
"""
