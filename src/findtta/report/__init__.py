"""Results as one HTML page that opens anywhere, without a network, and the leaderboard of all methods."""

from findtta.paper.numbers import DATASETS
from findtta.report.boards import Board, boards, standing
from findtta.report.page import TITLE, page, write

__all__ = ["DATASETS", "TITLE", "Board", "boards", "page", "standing", "write"]
