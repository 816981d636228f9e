"""All parts of the campaign, in order."""

from . import command_line, inputs, kills, requests, shortages
from .trials import Part
from .world import World


def all_parts(world: World) -> list[Part]:
    """List the rows of the table."""
    return [
        *kills.parts(world),
        *inputs.parts(world),
        *requests.parts(world),
        *command_line.parts(world),
        *shortages.parts(world),
    ]
