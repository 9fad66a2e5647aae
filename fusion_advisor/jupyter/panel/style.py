"""The panel's style sheet: JupyterLab's colours where they are, its own elsewhere, light and dark.

Everything is scoped to the panel's class; drawings of the report get their colours here too.
"""

from __future__ import annotations

ROOT_CLASS = "fusion-advisor-panel"

# The frame takes the front end's theme; what carries meaning has a value for light and for dark.
_LIGHT = """
--fadv-good:#176b34;--fadv-bad:#a3222b;--fadv-warn:#7d4a00;--fadv-good-bg:#e3f3e7;
--fadv-bad-bg:#fbe6e6;--fadv-warn-bg:#fbf0dc;--fadv-before:#a8471c;--fadv-after:#0b5cad;
--fadv-op:#fdf1ea;--fadv-op-line:#c98a6a;--fadv-kernel:#e6f0fa;--fadv-kernel-line:#5d97cc;
--fadv-k:#8a2f7c;--fadv-s:#23692d;--fadv-c:#5c656e;--fadv-n:#8a4b08;--fadv-f:#0b5cad
"""
_DARK = """
--fadv-good:#86d79a;--fadv-bad:#ff9d98;--fadv-warn:#f0bd6b;--fadv-good-bg:#17301f;
--fadv-bad-bg:#3a1c1e;--fadv-warn-bg:#35280f;--fadv-before:#f0a27c;--fadv-after:#7ab8f5;
--fadv-op:#33251d;--fadv-op-line:#9a6a50;--fadv-kernel:#182b3d;--fadv-kernel-line:#4a80b3;
--fadv-k:#e49bd8;--fadv-s:#95d49c;--fadv-c:#98a2ac;--fadv-n:#f0b97d;--fadv-f:#8cc4f7
"""
_FRAME = """
--fadv-ink:var(--jp-ui-font-color1,var(--vscode-editor-foreground,#1b1f24));
--fadv-soft:var(--jp-ui-font-color2,var(--vscode-descriptionForeground,#545d68));
--fadv-line:var(--jp-border-color2,var(--vscode-panel-border,#d9dee3));
--fadv-quiet:var(--jp-layout-color2,var(--vscode-textCodeBlock-background,rgba(128,128,128,.12)));
--fadv-page:var(--jp-layout-color1,var(--vscode-editor-background,transparent));
--fadv-accent:var(--jp-brand-color1,var(--vscode-focusBorder,#0b5cad));
--fadv-mono:var(--jp-code-font-family,ui-monospace,SFMono-Regular,Menlo,Consolas,monospace)
"""
# One rule a line; every selector is taken to be inside the panel, "&" is the panel itself.
_RULES = """
& {color:var(--fadv-ink);font-size:var(--jp-ui-font-size1,13px);line-height:1.45}
.widget-html-content, .jupyter-widgets-html-content {line-height:1.45;overflow-wrap:anywhere;color:var(--fadv-ink)}
.widget-html, .jupyter-widget-html {height:auto;margin:0}
.widget-tab>.widget-tab-contents, .jupyter-widget-tab>.jupyter-widget-TabPanel-tabContents {padding:12px 14px}
h3 {font-size:1.35em;line-height:1.3;margin:8px 0 10px;font-weight:600}
h4 {font-size:1.08em;margin:14px 0 6px;font-weight:600}
p {margin:4px 0 8px}
ul {margin:4px 0 8px;padding-left:20px}
.fadv-soft {color:var(--fadv-soft)}
.fadv-num {text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.fadv-facts {display:grid;grid-template-columns:repeat(auto-fit,minmax(205px,1fr));gap:10px;margin:0 0 12px}
.fadv-facts>div {border:1px solid var(--fadv-line);border-radius:6px;padding:8px 12px}
.fadv-facts dt {color:var(--fadv-soft);font-weight:400;margin:0;padding:0;width:auto;float:none}
.fadv-facts dd {margin:0;padding:0;width:auto;float:none}
.fadv-figure {font-size:1.18em;font-weight:600;font-variant-numeric:tabular-nums}
.fadv-scroll {overflow:auto;border:1px solid var(--fadv-line);border-radius:6px;max-height:34em}
.fadv-scroll:focus-visible, pre:focus-visible {outline:2px solid var(--fadv-accent)}
table {border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
caption {text-align:left;padding:6px 10px;color:var(--fadv-soft)}
th, td {text-align:left;padding:4px 10px;border-bottom:1px solid var(--fadv-line);vertical-align:top}
tbody tr:last-child>* {border-bottom:0}
tbody th {font-weight:600}
th code, .fadv-nowrap {white-space:nowrap}
thead th {color:var(--fadv-soft);font-weight:600;white-space:nowrap;position:sticky;top:0;background:var(--fadv-page)}
th.fadv-num, td.fadv-num {text-align:right}
code, pre {font-family:var(--fadv-mono);font-size:.95em;color:inherit;background:none}
pre {background:var(--fadv-quiet);border:1px solid var(--fadv-line);border-radius:6px;padding:8px 12px;margin:6px 0;overflow:auto;max-height:34em;line-height:1.5;white-space:pre;tab-size:4}
.k, .d {color:var(--fadv-k)}
.s {color:var(--fadv-s)}
.c {color:var(--fadv-c);font-style:italic}
.n {color:var(--fadv-n)}
.f, .b {color:var(--fadv-f)}
.fadv-tag {display:inline-block;border:1px solid var(--fadv-line);border-radius:999px;padding:0 9px;background:var(--fadv-quiet);white-space:nowrap}
.fadv-tag.good {background:var(--fadv-good-bg);color:var(--fadv-good)}
.fadv-tag.bad {background:var(--fadv-bad-bg);color:var(--fadv-bad)}
.fadv-tag.warn {background:var(--fadv-warn-bg);color:var(--fadv-warn)}
.fadv-note {border-left:3px solid var(--fadv-accent);background:var(--fadv-quiet);padding:6px 12px;margin:6px 0;border-radius:0 6px 6px 0}
.fadv-note.bad {border-color:var(--fadv-bad);background:var(--fadv-bad-bg)}
.fadv-note.good {border-color:var(--fadv-good)}
.fadv-pair {display:grid;grid-template-columns:minmax(5em,10em) minmax(8em,1fr) 8em;gap:2px 12px;align-items:center;margin:0 0 8px;font-variant-numeric:tabular-nums}
.fadv-pair .name {grid-row:span 2;overflow-wrap:anywhere}
.fadv-pair .track {height:11px;display:block}
.fadv-pair i {display:block;height:11px;border-radius:3px;background:var(--fadv-before);min-width:2px}
.fadv-pair i.after {background:var(--fadv-after)}
.fadv-key {display:flex;gap:18px;color:var(--fadv-soft)}
.fadv-key i {display:inline-block;width:10px;height:10px;border-radius:50%;margin-right:6px;background:var(--fadv-before)}
.fadv-key i.after {background:var(--fadv-after)}
.fadv-hidden {position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
.fadv-row {border-bottom:1px solid var(--fadv-line);align-items:stretch}
.fadv-row .widget-html-content, .fadv-row .jupyter-widgets-html-content {padding:5px 0}
.fadv-chosen {background:var(--fadv-quiet);box-shadow:inset 3px 0 0 var(--fadv-accent)}
.fadv-row button {text-align:left;padding:0 6px}
.fadv-head {border-bottom:2px solid var(--fadv-line)}
.fadv-head button {background:transparent;text-align:left;padding:0 2px;font-weight:600;color:var(--fadv-soft);overflow:hidden;margin:0}
.fadv-head button:hover, .fadv-head button:focus-visible {color:var(--fadv-ink);box-shadow:none}
button:focus-visible {outline:2px solid var(--fadv-accent);outline-offset:-2px}
.fadv-cells {display:grid;gap:0 8px;align-items:start}
.fadv-verdicts {display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:8px;list-style:none;padding:0;margin:0}
.fadv-verdicts li {border:1px solid var(--fadv-line);border-radius:6px;padding:6px 10px;margin:0}
.fadv-verdicts b {display:block}
.fadv-verdicts .yes b {color:var(--fadv-good)}
.fadv-verdicts .no b {color:var(--fadv-warn)}
svg {display:block;width:100%;height:auto;max-width:860px}
svg text {font-family:var(--jp-ui-font-family,system-ui,sans-serif);fill:var(--fadv-ink);font-size:13px}
svg .flow-title {font-weight:600;font-size:14px}
svg .flow-note, svg .arrow-text, svg .tick, svg .axis, svg .roof-text {fill:var(--fadv-soft)}
svg .arrow-text {font-size:11.5px}
svg .memory {fill:var(--fadv-quiet)}
svg .memory-text {font-size:12px;fill:var(--fadv-soft)}
svg .op {fill:var(--fadv-op);stroke:var(--fadv-op-line)}
svg .kernel {fill:var(--fadv-kernel);stroke:var(--fadv-kernel-line);stroke-width:1.5}
svg line.read, svg line.write {stroke-width:1.5}
svg .read {stroke:var(--fadv-soft)}
svg .write {stroke:var(--fadv-before)}
svg .read-head {fill:var(--fadv-soft)}
svg .write-head {fill:var(--fadv-before)}
svg .grid {stroke:var(--fadv-line)}
svg .roof {fill:none;stroke:var(--fadv-soft);stroke-width:2}
svg .cache {stroke-dasharray:5 4}
svg .move {stroke:var(--fadv-soft);stroke-dasharray:3 3}
svg .point.before {fill:var(--fadv-before)}
svg .point.after {fill:var(--fadv-after)}
svg .point-text {font-weight:600}
""".strip()


def style_sheet() -> str:
    """A ``<style>`` element; JupyterLab, VS Code and Colab mark dark themes each in its own way."""
    root = f".{ROOT_CLASS}"
    dark = ", ".join(
        f"{mark} {root}"
        for mark in ('[data-jp-theme-light="false"]', "body.vscode-dark", "html[theme=dark]")
    )
    rules = "\n".join(_scoped(line, root) for line in _RULES.split("\n"))
    return f"<style>\n{root} {{{_FRAME};{_LIGHT}}}\n{dark} {{{_DARK}}}\n{rules}\n</style>"


def _scoped(rule: str, root: str) -> str:
    selectors, body = rule.split(" {", 1)
    scoped = (root if one == "&" else f"{root} {one}" for one in selectors.split(", "))
    return f"{', '.join(scoped)} {{{body}"
