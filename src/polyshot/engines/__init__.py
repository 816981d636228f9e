"""Where jobs run: by processes of this machine, or by a cluster that Ray operates.

The door is `Engine.run`: jobs go in, what they tell comes out. Who hands jobs in does not know
which engine it is, and an engine does not know what a job does.
"""

from polyshot.engines.job import Engine, Event, Failed, Job, Place, Resources

__all__ = ["Engine", "Event", "Failed", "Job", "Place", "Resources"]
