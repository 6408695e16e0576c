"""A parser that forgives nothing, and what a page contains."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "input", "br", "hr", "link", "img"}


@dataclass
class Node:
    """An element with its attributes and what is in it."""

    name: str
    attributes: dict[str, str | None] = field(default_factory=dict)
    children: "list[Node | str]" = field(default_factory=list, repr=False)

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    @property
    def classes(self) -> set[str]:
        return set((self.attributes.get("class") or "").split())

    def all(self, name: str | None = None, /, **attributes: str) -> "list[Node]":
        """Find all elements below with this name and these attributes; ``class_`` is one of the classes."""
        found = []
        for child in self.children:
            if isinstance(child, Node):
                if (name is None or child.name == name) and all(
                    value in child.classes
                    if key == "class_"
                    else child.attributes.get(key.replace("_", "-")) == value
                    for key, value in attributes.items()
                ):
                    found.append(child)
                found += child.all(name, **attributes)
        return found

    def one(self, name: str | None = None, /, **attributes: str) -> "Node":
        found = self.all(name, **attributes)
        assert len(found) == 1, f"{len(found)} elements are {name} {attributes}"
        return found[0]

    def row(self, method: str) -> list[str]:
        """The texts of the first row of a method."""
        cells = self.all("tr", data_method=method)[0].children
        return [cell.text for cell in cells if isinstance(cell, Node)]


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Node("root")
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice: {names}"
        node = Node(tag, dict(attrs))
        self._open[-1].children.append(node)
        if tag not in VOID:
            self._open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag == self._open[-1].name, f"</{tag}> where </{self._open[-1].name}> should be"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


def parse(page: str) -> Node:
    """Parse a page; every element must be closed where it should be, every id must be there once."""
    parser = _Parser()
    parser.feed(page)
    parser.close()
    assert parser._open == [parser.root], f"never closed: {[node.name for node in parser._open[1:]]}"
    ids = [node.attributes["id"] for node in parser.root.all() if "id" in node.attributes]
    assert len(ids) == len(set(ids)), "some id is there twice"
    return parser.root
