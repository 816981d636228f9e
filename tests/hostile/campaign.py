"""All parts of the campaign, in order."""

from . import inputs, kills
from .trials import Part
from .world import World


def all_parts(world: World) -> list[Part]:
    """List the rows of the table."""
    return [*kills.parts(world), *inputs.parts(world)]
