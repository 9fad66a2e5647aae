"""The magics: parse, call the advisor, display.  Bodies run as under ``%%time``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from IPython.core.magic import (
    Magics,
    line_cell_magic,
    line_magic,
    magics_class,
    needs_local_scope,
    no_var_expand,
)
from traitlets import Bool, Enum, Float, Int, Unicode

from fusion_advisor.analysis.findings import MIN_SAVING_US
from fusion_advisor.errors import FixError, FusionAdvisorError, UsageError
from fusion_advisor.jupyter import completion, panel
from fusion_advisor.jupyter.cell_edit import edited_text, text_diff
from fusion_advisor.jupyter.cells import Body, Cell, CellBook, compile_body, result_is_used
from fusion_advisor.jupyter.channel import Channel
from fusion_advisor.jupyter.history import ModelCall, model_calls, repeatable_call
from fusion_advisor.jupyter.jobs import close_runner, runner_of
from fusion_advisor.jupyter.options import (
    APPLY_OPTIONS,
    PROFILE_OPTIONS,
    SHOW_OPTIONS,
    parse,
    parse_anywhere,
)
from fusion_advisor.jupyter.profiles import Profiles
from fusion_advisor.jupyter.progress import Progress, show
from fusion_advisor.jupyter.settings import Settings, possible_config
from fusion_advisor.report.files import check_export
from fusion_advisor.report.notebook import finding_html, notebook_html
from fusion_advisor.report.text import render_finding, render_text
from fusion_advisor.report.view import applied_sentence

if TYPE_CHECKING:
    from fusion_advisor.advice import Advice
    from fusion_advisor.records import Report

MAGICS = ("fuse_profile", "fuse_show", "fuse_apply", "fuse_undo", "fuse_export")
NESTED_MESSAGE = "%fuse_profile: this code is already being profiled; the outer report covers it"
INTERRUPTED = "stopped; what the magic had begun is taken back"
INTERRUPTED_AFTER_THE_CODE = (
    "stopped; the code itself had run to its end, and only its report is missing"
)


@magics_class
class FuseMagics(Magics):
    """Profile PyTorch code, and show, apply and undo kernel fusion.

    ``%config FuseMagics`` lists the defaults that options override for one call.
    """

    target = Enum(("cpu", "cuda", "both"), "both", help="Kernels to generate.").tag(config=True)
    device = Unicode("", help="Estimate for this device instead of the one here, e.g. h100.").tag(
        config=True
    )
    top = Int(10, min=1, help="How many findings to show.").tag(config=True)
    steps = Int(2, min=1, help="Loop steps to record before the rest runs plainly.").tag(
        config=True
    )
    max_ops = Int(50_000, min=1, help="Most ops to record.").tag(config=True)
    keep = Int(8, min=1, help="How many earlier profiles %fuse_show and %fuse_apply reach.").tag(
        config=True
    )
    plots = Bool(True, help="Draw plots in the notebook display.").tag(config=True)
    min_saving_us = Float(
        MIN_SAVING_US, min=0.0, help="Report no finding that saves less, in microseconds per run."
    ).tag(config=True)
    marks = Bool(True, help="Mark findings in the notebook's cells.").tag(config=True)

    def __init__(self, shell: Any, earlier: FuseMagics | None = None) -> None:
        super().__init__(shell=shell, config=possible_config(shell, type(self)))
        self.host: Any = shell
        self.book: CellBook = CellBook(shell) if earlier is None else earlier.book
        self.profiles: Profiles = Profiles(self.book) if earlier is None else earlier.profiles
        self.settings = Settings(self)
        self.channel: Channel | None = None
        self._observed: list[Callable[[], None]] = []  # each ends watching one advice
        self._profiling = False
        self._progress: Progress | None = None
        self._completers: dict[str, Any] = {}
        self._panels = panel.ShownPanels()

    @property
    def advices(self) -> list[Advice]:
        """What was profiled and is still within reach, latest last."""
        return self.profiles.advices

    # -- into the shell and out of it ----------------------------------------------------------

    def install(self) -> None:
        """Register magics, hooks and completion (``Magics`` itself enters the configurables)."""
        shell = self.host
        shell.register_magics(self)
        shell.events.register("pre_run_cell", self.book.before)
        shell.events.register("post_run_cell", self.book.after)
        self.book.add_history()
        self.book.on_run = self._cell_ran
        completion.install(shell, self)
        if self._in_kernel:
            self.channel = Channel(
                shell,
                profiles=self.profiles,
                book=self.book,
                settings=self.settings,
                runner=runner_of(shell),
            )
            self.channel.open()
        for advice in self.advices:
            self._watch(advice)

    def uninstall(self) -> None:
        """Undo everything that is in place, then take out what :meth:`install` put in."""
        shell = self.host
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        close_runner(shell)
        for end in self._observed:
            end()
        for advice in self.advices:
            if any(not fix.undone for fix in advice.report.applied):
                advice.undo()
        for kind in ("line", "cell"):
            for name in MAGICS:
                shell.magics_manager.magics[kind].pop(name, None)
        shell.magics_manager.registry.pop(type(self).__name__, None)
        if self in shell.configurables:
            shell.configurables.remove(self)
        shell.events.unregister("pre_run_cell", self.book.before)
        shell.events.unregister("post_run_cell", self.book.after)
        self.book.on_run = None
        completion.uninstall(shell)

    def _cell_ran(self, cell: Cell) -> None:
        if self.profiles.cell_ran(cell) and self.channel is not None:
            self.channel.broadcast()

    def _watch(self, advice: Advice) -> None:
        """Tell the notebook whenever kernels of an advice are put in place or taken out."""
        known = advice.report.applied

        def changed() -> None:
            nonlocal known
            if advice.report.applied is not known and self.channel is not None:
                known = advice.report.applied
                self.channel.broadcast()

        self._observed.append(advice.observe(changed))

    # -- profiling -----------------------------------------------------------------------------

    @no_var_expand
    @needs_local_scope
    @line_cell_magic
    def fuse_profile(self, line: str = "", cell: str | None = None, local_ns: Any = None) -> Any:
        """Profile PyTorch code and list what fusing its kernels would save.

        Usage, in line mode::

          %fuse_profile [options] EXPRESSION
          y = %fuse_profile [options] EXPRESSION
          %fuse_profile                           the last model call of this session

        or in cell mode::

          %%fuse_profile [options]
          code...

        The code runs once, as it would without the magic: its output, its value and its errors
        are its own.  The report follows.

        Options (before the expression, as in ``%timeit``)::

          --backward        record the backward pass of the value (a scalar loss, ``.loss``, or
                            the sum of the outputs, which is then said)
          --device NAME     estimate for a device that is not here: h100, a100, ...
          --target T        kernels to generate: cpu, cuda or both
          --top N           how many findings to show
          --all             also legal candidates that are not worth it, and every why-not
          --steps N         loop steps (optimizer steps or model calls) to record
          --export PATH     write the report: .html, .md, .json, .csv, .sarif, .trace.json, .txt
          --panel           show the panel, with its buttons, below the report
          -o NAME           bind the advice object to a variable

        Then: ``%fuse_show F1``, ``%fuse_apply F1``, ``%fuse_undo``.
        """
        __tracebackhide__ = True  # an error of the person's code shows their code alone
        with one_line_errors():
            options, expression = parse(line, PROFILE_OPTIONS, "%fuse_profile")
            if "export" in options:
                check_export(str(options["export"]))  # before anything runs
            if options.get("panel"):
                panel.check_possible()
            if cell is not None and expression:
                raise UsageError(
                    "%%fuse_profile takes options only on its first line; put the code below it"
                )
            if cell is None and not expression:
                expression = self._last_call()
                local_ns = None
            text = cell if cell is not None else expression
            with plain_syntax_errors(self.host):
                body = compile_body(
                    self.host,
                    text,
                    book=self.book,
                    line_of="" if cell is not None else "fuse_profile",
                    local_ns=local_ns if cell is None else None,
                )
        if self._profiling:
            print(NESTED_MESSAGE)
            return body.run()
        again = None
        if cell is None and self.shell is not None:
            again = repeatable_call(text, {**self.shell.user_ns, **(local_ns or {})})
        advice = self._advise(body, options, title=_title(text), rerun=again)
        returned = cell is None and result_is_used()
        if body.shows_value and not returned:
            sys.displayhook(advice.result)
        with one_line_errors():
            self._display(advice, options)
            if options.get("panel"):
                self._panels.show(advice, self.book.current())
        return advice.result if returned else None

    def _advise(
        self,
        body: Body,
        options: dict[str, Any],
        *,
        title: str,
        rerun: Callable[[], Any] | None,
    ) -> Advice:
        from fusion_advisor import advisor

        __tracebackhide__ = True
        self._profiling = True
        try:
            with self._following(), one_line_errors(body):
                advice = advisor.profile_code(
                    body.run,
                    backward=bool(options.get("backward")),
                    device=self.settings.value("device", options.get("device")) or None,
                    target=self.settings.value("target", options.get("target")),
                    steps=options.get("steps") or self.steps,
                    max_ops=self.max_ops,
                    min_saving_us=self.settings.value("min_saving_us"),
                    title=title,
                    progress=self._follow,
                    rerun=rerun,
                )
        except BaseException as error:
            if error is body.error:
                raise error.with_traceback(body.own_traceback(error.__traceback__)) from (
                    error.__cause__
                )
            raise
        finally:
            self._profiling = False
        self.profiles.add(advice, self.book.current(), keep=self.keep)
        self._watch(advice)
        if self.channel is not None:
            self.channel.broadcast()
        if "output" in options:
            self.host.user_ns[options["output"]] = advice
        return advice

    def _display(self, advice: Advice, options: dict[str, Any]) -> None:
        top = int(self.settings.value("top", options.get("top")))
        everything = bool(options.get("all"))
        report = advice.report
        data = {"text/plain": render_text(report, top=top, all=everything)}
        if self._in_kernel:
            data["text/html"] = notebook_html(report, top=top, all=everything, plots=self.plots)
        show(data)
        if "export" in options:
            print(f"Report written to {advice.export(str(options['export']))}")

    def _last_call(self) -> str:
        """The expression a bare ``%fuse_profile`` evaluates again."""
        others: list[ModelCall] = []
        for call in model_calls(self.host):
            if call.repeatable and not others:
                print(f"%fuse_profile {call.text}    (from In[{call.number}])")
                return call.text
            if call.text in {other.text for other in others}:
                continue
            others.append(call)
            if len(others) == 5:
                break
        if not others:
            raise UsageError(
                "no call of a model in this session to profile again: type %fuse_profile model(x)"
            )
        lines = [
            f"  %fuse_profile {call.text}    (In[{call.number}]: "
            f"{call.reason or 'an earlier call'})"
            for call in others
        ]
        raise UsageError(
            "the last model call is not run again by itself; type the line you mean:\n"
            + "\n".join(lines)
        )

    # -- findings ------------------------------------------------------------------------------

    @no_var_expand
    @line_magic
    def fuse_show(self, line: str = "") -> None:
        """Show a finding: evidence, validated kernel, measured times.

        Usage::

          %fuse_show F1                 generate, validate and measure its kernel, and show it
          %fuse_show                    the last report again

        Options::

          --target T        kernels to generate: cpu, cuda or both
          --match M         eager (default: round as eager does) or fast (round less often)
          --no-validate     do not run the kernel, only generate it
        """
        with one_line_errors():
            options, words = parse_anywhere(line, SHOW_OPTIONS, "%fuse_show")
            if not words:
                self._display(self._latest(), {})
                return
            for advice, finding_id in self._chosen(words):
                if _has_kernel(advice.report, finding_id):
                    with self._following():
                        target = options.get("target")
                        advice.fuse(
                            finding_id, str(target) if target else None, match=_match(options)
                        )
                        if not options.get("no_validate"):
                            advice.validate(finding_id)
                data = {"text/plain": render_finding(advice.report, finding_id)}
                if self._in_kernel:
                    data["text/html"] = finding_html(advice.report, finding_id)
                show(data)

    @no_var_expand
    @line_magic
    def fuse_apply(self, line: str = "") -> None:
        """Put the validated kernel of a finding in place, live or as text.

        Usage::

          %fuse_apply F1 [F2 ...]       these findings
          %fuse_apply --all             every finding of the last report that no comment
                                        (# fuse: ignore) ignores

        Each kernel is validated first; the whole call is checked and timed afterwards, and what
        is wrong or slower is taken back.

        Options::

          --all             every finding
          --where PLACE     function (default), module, or file (edit your own source file)
          --match M         eager (default: round as eager does) or fast (round less often)
          --cell            do not change anything live: show the edited cell as a diff and
                            propose it as the next input
        """
        with one_line_errors():
            options, words = parse_anywhere(line, APPLY_OPTIONS, "%fuse_apply")
            if options.get("all") and words:
                raise UsageError("%fuse_apply: name findings or say --all, not both")
            if options.get("all"):
                chosen = [
                    (self._latest(), finding.id)
                    for finding in self._latest().report.findings
                    if not finding.ignored
                ]
            else:
                chosen = self._chosen(words, magic="%fuse_apply", needed=True)
            if options.get("cell"):
                for advice, finding_id in chosen:
                    if "match" in options:
                        advice.fuse(finding_id, match=_match(options))
                    self._propose_cell(advice, finding_id)
                return
            for advice, ids in _by_advice(chosen):
                where = str(options["where"]) if "where" in options else None
                with self._following():
                    fixes = advice.apply(
                        ids[0] if len(ids) == 1 else ids, where=where, match=_match(options)
                    )
                for fix in fixes:
                    print(applied_sentence(fix))
                    for place in fix.places if not fix.undone else ():
                        print(f"    {place}")
            if not chosen:
                print("There is no finding to apply.")

    def _propose_cell(self, advice: Advice, finding_id: str) -> None:
        fix = advice.cell_fix(finding_id)
        if fix.blockers:
            reasons = "; ".join(blocker.message for blocker in fix.blockers)
            raise FixError(f"{finding_id} cannot be edited into the text: {reasons}")
        if fix.where == "file":
            raise FixError(
                f"{finding_id} stands in {fix.path}, not in a cell: %fuse_apply {finding_id} "
                f"--where file"
            )
        old = self.book.text_with_hash(fix.old_hash)
        if old is None:
            raise FixError(
                f"the cell of {finding_id} has changed since it ran: run it and profile again"
            )
        new = edited_text(old, fix)
        print(text_diff(old, new, name=f"cell of {finding_id}"))
        print("The edited cell is the next input: run it in place of the old one.")
        self.host.set_next_input(new, replace=False)

    @no_var_expand
    @line_magic
    def fuse_undo(self, line: str = "") -> None:
        """Take kernels out again, exactly.

        Usage::

          %fuse_undo            everything that is in place
          %fuse_undo F1 [F2 ...]
        """
        with one_line_errors():
            _, words = parse_anywhere(line, (), "%fuse_undo")
            if words:
                places = [
                    place for advice, one in self._chosen(words) for place in advice.undo(one)
                ]
            else:
                places = [place for advice in self.advices for place in advice.undo()]
            for place, times in Counter(places).items():
                print(f"taken out: {place}" + (f"  (× {times})" if times > 1 else ""))
            if not places:
                print("Nothing was in place.")

    @no_var_expand
    @line_magic
    def fuse_export(self, line: str = "") -> None:
        """Write the last report to a file.

        Usage::

          %fuse_export PATH     a name that ends in .html (one self-contained page), .md (for a
                                pull request), .json (read back without loss), .csv (findings),
                                .ops.csv, .sarif (code scanning), .trace.json (Perfetto) or .txt
          %fuse_export NAME.py  a module with the validated kernels: apply(model) puts them in
                                place after a restart, undo(model) takes them out
        """
        with one_line_errors():
            _, words = parse_anywhere(line, (), "%fuse_export")
            if len(words) != 1:
                raise UsageError("%fuse_export needs one file name: %fuse_export report.html")
            advice = self._latest()
            if Path(words[0]).suffix.lower() != ".py":
                print(f"Report written to {advice.export(Path(words[0]))}")
                return
            with self._following():
                written = advice.export(Path(words[0]))
            print(f"Kernels written to {written}. After a restart, run this cell:\n")
            print(advice.reapply_cell(written.stem))

    def finding_ids(self) -> list[str]:
        """Ids that the magics can reach, latest report first."""
        return [
            finding.id for advice in reversed(self.advices) for finding in advice.report.findings
        ]

    def _latest(self) -> Advice:
        if not self.advices:
            raise UsageError("nothing was profiled yet: %fuse_profile model(x)")
        return self.advices[-1]

    def _chosen(
        self, words: list[str], *, magic: str = "", needed: bool = False
    ) -> list[tuple[Advice, str]]:
        """The advice that holds each named finding."""
        self._latest()
        known = ", ".join(self.finding_ids()) or "none"
        if needed and not words:
            raise UsageError(f"{magic} needs a finding ({known}) or --all")
        owners = {
            finding.id.lower(): (advice, finding.id)
            for advice in self.advices
            for finding in advice.report.findings
        }
        missing = [word for word in words if word.lower() not in owners]
        if missing:
            raise UsageError(f"there is no finding {missing[0]!r} (there are: {known})")
        return [owners[word.lower()] for word in words]

    # -- progress ------------------------------------------------------------------------------

    @property
    def _in_kernel(self) -> bool:
        return hasattr(self.host, "kernel")

    def _follow(self, stage: str, fraction: float) -> None:
        """Handed to the advisor, which keeps it for what is asked later."""
        if self._progress is not None:
            self._progress(stage, fraction)

    @contextmanager
    def _following(self) -> Iterator[None]:
        self._progress = Progress(in_kernel=self._in_kernel)
        try:
            yield
        except BaseException as error:
            self._progress.finish(f"stopped by {type(error).__name__}")
            raise
        else:
            self._progress.finish()
        finally:
            self._progress = None


@contextmanager
def one_line_errors(body: Body | None = None) -> Iterator[None]:
    """Errors of ours, and interrupts of our work, are shown as one line.

    What the person's own code raised is left as it is.
    """
    __tracebackhide__ = True
    try:
        yield
    except KeyboardInterrupt as error:
        if body is None or error is not body.error:
            said = INTERRUPTED if body is None or not body.finished else INTERRUPTED_AFTER_THE_CODE
            _show_as(error, f"KeyboardInterrupt: {said}")
        raise
    except FusionAdvisorError as error:
        if body is None or error is not body.error:
            _show_as(error, f"{type(error).__name__}: {error}")
        raise


@contextmanager
def plain_syntax_errors(shell: Any) -> Iterator[None]:
    """Have a syntax error of the person's code shown as in a cell without the magic.

    Raised inside running code, IPython would put the frames that led to it above it.
    """
    try:
        yield
    except SyntaxError as error:
        mine = error

        def once(filename: str | None = None, running_compiled_code: bool = False) -> None:
            del shell.showsyntaxerror  # the class's own again
            running = running_compiled_code and sys.exc_info()[1] is not mine
            shell.showsyntaxerror(filename, running_compiled_code=running)

        shell.showsyntaxerror = once
        raise


def _show_as(error: BaseException, text: str) -> None:
    """Have IPython show one line in place of a traceback."""
    error._render_traceback_ = lambda: [text]  # type: ignore[attr-defined]


def _match(options: dict[str, object]) -> Literal["eager", "fast"] | None:
    """The option's value, which its table has checked."""
    return cast(Literal["eager", "fast"] | None, options.get("match"))


def _has_kernel(report: Report, finding_id: str) -> bool:
    """False for advice that no kernel serves: it is shown as it is."""
    return any(
        finding.id == finding_id and finding.safety != "display-only" for finding in report.findings
    )


def _by_advice(chosen: list[tuple[Advice, str]]) -> list[tuple[Advice, list[str]]]:
    """Findings of one report are applied, and checked, together."""
    groups: dict[int, tuple[Advice, list[str]]] = {}
    for advice, finding_id in chosen:
        groups.setdefault(id(advice), (advice, []))[1].append(finding_id)
    return list(groups.values())


def _title(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = lines[0].rstrip(" ;") if lines else ""
    return first + (" …" if len(lines) > 1 else "")
