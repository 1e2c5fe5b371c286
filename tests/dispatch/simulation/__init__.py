"""A simulation of lanes, their owners, consumers, people and crashes, against a plain model of the store.

`schedule.drawn` makes a schedule, `replay.replay` runs one and checks after each step what always holds,
`shrink.shrunk` makes a failing one small, `report.as_test` writes it down.
"""
