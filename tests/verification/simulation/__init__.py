"""Deterministic simulation: whole deployments of pushkit in virtual time, with faults, from a seed.

A seed decides a scenario: how many agents, workers, webhooks, receivers and clients of mailboxes
there are, and steps such as "agent0 notifies", "worker1 is killed" or "hook0 answers 503 from now
on". `play` runs it in one operating-system process. The same seed gives the same trace, byte for
byte.

Real: all code of `pushkit` and `receiver`, with SQLite (in memory), its HTTP client, aiohttp's
server, and aiohttp's client for mailboxes. Three scenarios of four replace signatures by cheaper
ones (`cheap`).

Simulated:

- time, the order of ready tasks, random numbers, threads: `loop`, `surroundings`
- connections, TLS handshakes and name lookups, byte by byte: `network`
- machines and processes, which are killed, frozen, stopped and upgraded: `world`
- databases, with errors before and after each statement and power cuts: `disk` (a SQLite file that
  processes share), `postgres` (a server with row locks), `faults`
- the other parties: `webhook` (servers that misbehave), `clients` (owners, agents and operators),
  `attacks` (an attacker on the network)

Checked, while the scenario runs and again once all faults are over and all queues are empty:

- `promises`: at least once, in order, no repetition that no fault explains, nothing acknowledged is
  lost, nothing forged is called back, each change of state is allowed
- `mailboxes`: what a mailbox keeps is handled to its end, in order, by one client at a time, and
  not again once its ack was answered; a lost lease settles nothing
- `pacing`: one attempt at a time, fair shares of slots, waits between attempts, `Retry-After`,
  breakers
- `bounds`: rows, log lines, connections and tasks stay in proportion to the work
- `secrecy`: no token, credential, key, password or body in a log line, event or error
- `play`: no lost exception, no lost slot, no plaintext secret in the database

Each violation is a line of the trace, and fails the seed. A fault excuses a violation only where
the check names that kind of fault, and only around the time at which it happened.

The checks are tested as well: `test_promises` breaks each promise by hand; `removals` takes each
guarantee listed in `cuts` out of the code, and looks for a seed that breaks its promise;
`histories` runs the same transactions on the simulated PostgreSQL and on a real server, and
compares every row.

Read `scenario` and `workload` first (what a seed decides), then `play`, then `promises`. The
programs are in `programs`, faults in the middle of a request in `triggers`, former failures
in `regressions`. `docs/how-to/simulation.md` says how to investigate a seed that fails.
"""
