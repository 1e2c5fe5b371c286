"""A simulation of lanes, their owners, consumers, people and crashes, against a plain model of the store.

The store may go back to an earlier state, as PostgreSQL does when it loses its newest commits: `server` has the
rules that guard it then, `worker` those that guard an owner.

`schedule.drawn` makes a schedule, `replay.replay` runs one and checks after each step what always holds,
`shrink.shrunk` makes a failing one small, `report.as_test` writes it down.
"""
