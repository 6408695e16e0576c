"""``python -m findtta`` is the ``findtta`` command."""

import sys

from findtta.cli.main import main

sys.exit(main())
