"""What drawings are made of: images of the data, and the shares of domains along streams."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

from findtta.bench.plan import Plan
from findtta.data.contact_sheet import contact_sheet
from findtta.streams.plot import views


def measure_sheet(plan: Plan, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Draw the same few images in every domain of the plan's data.

    Args:
        plan: The data.
        settings: ``images``: how many of them.

    Returns:
        ``domains``, and the picture as ``png``, in base64.
    """
    domains = plan.dataset.domains
    sheet = contact_sheet(plan.dataset, domains, images=int(settings["images"]), seed=plan.spec.seed)
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG")
    return {"domains": list(domains), "png": base64.b64encode(buffer.getvalue()).decode("ascii")}


def measure_shares(plan: Plan, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return which share of the batches of a stream each domain has.

    Args:
        plan: The stream.
        settings: ``columns``: how many places there are along the stream.

    Returns:
        ``domains``, ``edges`` (the batches at which places begin, and the one after the last) and ``shares`` (for
        each place that of every domain).
    """
    columns = int(settings["columns"])
    view = views(plan.stream, columns, columns // 2)[0]
    return {
        "title": view.title,
        "domains": list(plan.stream.domains),
        "edges": view.edges.tolist(),
        "shares": [[round(float(share), 4) for share in place] for place in view.shares],
    }
