"""Queues of jobs, each worked off in order by the worker that leases it."""
