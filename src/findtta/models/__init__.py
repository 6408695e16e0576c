"""Models: those of other packages, behind one door."""
