"""Load with known answers for the prediction server: how fast it is, and whether every answer is the right one."""

from findtta.loadtest.drive import drive, run
from findtta.loadtest.kills import Killer, kill_replica
from findtta.loadtest.outcome import Outcome
from findtta.loadtest.settings import LoadOptions

__all__ = ["Killer", "LoadOptions", "Outcome", "drive", "kill_replica", "run"]
