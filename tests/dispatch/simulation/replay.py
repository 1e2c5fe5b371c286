"""Runs a schedule from beginning to end."""

from collections.abc import Sequence

from dispatch.simulation.drain import drain
from dispatch.simulation.operations import Operation
from dispatch.simulation.setup import Setup
from dispatch.simulation.world import World


def replay(setup: Setup, operations: Sequence[Operation]) -> list[tuple[object, ...]]:
    """Runs the operations, then drains; what came out. Raises what is wrong."""
    world = World(setup)
    worker = world.start()
    for lane in range(setup.lanes):
        worker.take(lane)
    for operation in operations:
        operation.run(world)
        world.check()
    drain(world)
    return world.trace
