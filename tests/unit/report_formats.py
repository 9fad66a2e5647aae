"""Reports with hostile text everywhere, and strict readers of every format."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from html.parser import HTMLParser
from typing import Any

from report_fixture import rich_report

from fusion_advisor.records import Report, SourceSpan

HOSTILE_TEXTS = {
    "script": "</script><script>boom()</script></style></pre></details><img src=x onerror=boom()>",
    "quotes": "\" ' ` `` ``` \\ \\` ${x} {{y}} %s {0} --> ]]>",
    "terminal": "\x1b[31mred\x1b]0;title\x07\x9b31m\x08\x7f",
    "nul": "a\0b\0",
    "surrogates": "\ud800lone\udfff",
    "bidi": "\u202egnp.exe\u2066\u200f\ufeff\u2028\u2029",
    "formula": "=cmd|'/c calc'!A0",
    "formula at": "@SUM(1+1)*cmd",
    "formula tab": "\t=1+1",
    "formula cr": "\r=1+1",
    "formula minus": "-2+3+cmd",
    "formula full-width": "\uff1d1+1",
    "table": "| a | b |\n|---|---|\n| c | d |",
    "link": "[x](javascript:boom()) <javascript:boom()> http://evil.example www.evil.example",
    "mention": "@torvalds #12 @org/team a@b.example",
    "markup": "# heading\n- item\n1. item\n> quote\n***bold*** ~~gone~~ $x^2$ ![i](http://e.example/x)",
    "entity": "&lt;script&gt; &#60;b&#62; &amp;",
    "csv": 'a,b;c\t"d"\r\n"e\n',
    "wide": "größe 数 \U0001f600 e\u0301",
    "million": "n" * 1_000_000,
}


def hostile_report(text: str) -> Report:
    """``text`` as op names, paths, module paths, functions, cell text, titles and reasons."""
    report = rich_report()
    capture, graph = report.capture, report.capture.graph
    nodes = tuple(
        dataclasses.replace(
            node,
            op=f"{text}.{text}" if place % 2 else text,
            module_path=f"{text}.{text}",
            module_class=text,
            span=_hostile_span(node.span, text),
            stack=tuple(_hostile_span(span, text) for span in node.stack),
        )
        for place, node in enumerate(graph.nodes)
    )
    findings = tuple(
        dataclasses.replace(
            finding,
            title=text,
            message=text,
            span=_hostile_span(finding.span, text),
            verdicts=tuple(
                dataclasses.replace(one, question=text, reason=text) for one in finding.verdicts
            ),
            notes=(text,),
            ignored=place == 1,
        )
        for place, finding in enumerate(report.findings)
    )
    environment = dataclasses.replace(
        capture.environment, cpu=text, platform=text, packages=((text, text),), devices=(text,)
    )
    return dataclasses.replace(
        report,
        capture=dataclasses.replace(
            capture,
            title=text,
            graph=dataclasses.replace(graph, nodes=nodes),
            environment=environment,
            notes=(text,),
        ),
        findings=findings,
        why_not=tuple(
            dataclasses.replace(one, code=text, message=text) for one in report.why_not
        ),
        applied=tuple(
            dataclasses.replace(one, where=text, places=(text,), reason=text)
            for one in report.applied
        ),
        notes=(text,),
    )  # fmt: skip


def _hostile_span(span: SourceSpan | None, text: str) -> SourceSpan | None:
    if span is None:
        return None
    return dataclasses.replace(
        span,
        file=f"/{text}/{text}.py",
        function=text,
        text=text,
        cell_id=text if span.kind == "cell" else None,
    )


def csv_rows(text: str) -> list[dict[str, str]]:
    """Rows of a CSV in which every row has every column."""
    rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    assert all(len(row) == len(rows[0]) for row in rows)
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def strict_json(text: str) -> Any:
    """JSON without NaN, infinities or a repeated key."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({name for name, _ in pairs}) == len(pairs)
        return dict(pairs)

    def refuse(name: str) -> Any:
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse, object_pairs_hook=unique)


class Tags(HTMLParser):
    """The tags and attribute names of HTML, and the text between them."""

    VOID = frozenset({"meta", "br", "input", "img", "link", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
