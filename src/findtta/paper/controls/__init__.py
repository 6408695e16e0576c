"""Controls that the paper lacks and that decide what its figures mean, one module each, with an ``ITEM``."""
