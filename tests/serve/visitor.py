"""What somebody does with the page, in the browser of the tests."""

from contextlib import contextmanager

import browser


class Visitor:
    """A tab that knows where things are on the page; waits end after Playwright's 30 seconds."""

    def __init__(self, tab):
        self.tab = tab
        self.complaints, self.requests = tab.complaints, tab.requests

    def visit(self, address):
        self.tab.goto(address)

    def start(self, address):
        """Open the page, and compare all samples."""
        self.visit(address)
        self.until("document.querySelectorAll('#samples button').length")
        samples = self.tab.locator("#samples button").count()
        self.click("#use-all")
        self.settle(samples)

    def overview(self, address):
        """Open the page, and wait until its overview is complete and its first batch is shown."""
        self.visit(address)
        # A busy machine takes its time for some dozen batches.
        self.tab.wait_for_function(
            "() => document.getElementById('overview').ariaBusy === 'false'", timeout=120_000
        )
        self.until("document.querySelectorAll('.prediction').length")

    def click(self, selector):
        self.tab.click(selector)

    def press(self, key):
        self.tab.keyboard.press(key)

    def value(self, script):
        return self.tab.evaluate(script)

    def until(self, condition):
        self.tab.wait_for_function(f"() => {condition}")

    def until_status(self, text):
        self.until(f"document.getElementById('status').textContent.includes({text!r})")

    def settle(self, cards):
        """Wait until this many predictions are there and nothing is asked any more."""
        self.until(
            "document.getElementById('results').ariaBusy === 'false' && "
            f"document.querySelectorAll('.prediction').length === {cards}"
        )

    def set(self, control, value):
        """Move a slider or choose from a list, as far as the page can tell."""
        self.tab.evaluate(
            "([id, value]) => { const control = document.getElementById(id); control.value = value;"
            "for (const kind of ['input', 'change']) control.dispatchEvent(new Event(kind, {bubbles: true})); }",
            [control, str(value)],
        )

    def choose(self, *paths):
        """Choose files as with the dialog of the system."""
        self.tab.set_input_files("#files", [str(path) for path in paths])

    def drop(self, *paths):
        """Drop files onto the page."""
        files = [[path.name, list(path.read_bytes())] for path in paths]
        data = self.tab.evaluate_handle(
            "(files) => { const data = new DataTransfer(); for (const [name, bytes] of files) "
            "data.items.add(new File([new Uint8Array(bytes)], name)); return data; }",
            files,
        )
        for kind in ("dragover", "drop"):
            self.tab.dispatch_event("#drop", kind, {"dataTransfer": data})

    def text(self, selector):
        return self.tab.inner_text(selector)

    def texts(self, selector):
        return self.tab.locator(selector).all_text_contents()

    def visible(self, selector):
        return self.tab.locator(f"{selector} >> visible=true").count()


@contextmanager
def visitor(chromium, **options):
    """Open a tab in which nothing may go wrong."""
    with browser.page(chromium, **options) as tab:
        yield Visitor(tab)
