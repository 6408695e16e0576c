"""What somebody does with the page, in the headless Chromium of the tests of the report."""

import json
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "report"))
import chromium

ABSENT, find = chromium.ABSENT, chromium.find


class _Address(str):
    """An address where the browser expects the path of a file."""

    def resolve(self):
        return self

    def as_uri(self):
        return str(self)


class Visitor(chromium.Browser):
    """A browser that knows where things are on the page."""

    def visit(self, address, **window):
        self.open(_Address(address), **window)
        self.until("document.readyState === 'complete'")

    def start(self, address, **window):
        """Open the page, and compare all samples."""
        self.visit(address, **window)
        self.until("!document.getElementById('start').disabled")
        self.click("#start")
        self.settle(32)

    def until(self, condition, patience=30.0):
        end = time.monotonic() + patience
        while not self.value(condition):
            assert time.monotonic() < end, f"never: {condition}"
            time.sleep(0.02)

    def settle(self, cards):
        """Wait until so many answers are there and nothing is asked any more."""
        self.until(
            "document.getElementById('results').ariaBusy === 'false' && "
            f"document.querySelectorAll('.answer').length === {cards}"
        )

    def set(self, control, value):
        """Move a slider or choose from a list, as far as the page can tell."""
        self.value(
            f"(() => {{ const control = document.getElementById({json.dumps(control)}); control.value = {value!r};"
            "for (const kind of ['input', 'change']) control.dispatchEvent(new Event(kind, {bubbles: true})); })()"
        )

    def choose(self, *paths):
        """Choose files as with the dialog of the system."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector="#files")["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def drop(self, *paths):
        """Drag files onto the page and let them go."""
        x, y = self.middle("#drop")
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def text(self, selector):
        return self.value(f"document.querySelector({json.dumps(selector)}).innerText")

    def texts(self, selector):
        return self.value(
            f"[...document.querySelectorAll({json.dumps(selector)})].map(found => found.textContent)"
        )

    def visible(self, selector):
        found = f"[...document.querySelectorAll({json.dumps(selector)})]"
        return self.value(f"{found}.filter(element => element.checkVisibility()).length")
