"""The kernel's side of the notebook protocol, in a real kernel with real comm messages."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("ipykernel")
pytest.importorskip("torch")

from kernel_client import (
    FrontEnd,
    Kernel,
    digest,
    running_kernel,
    utf16_slice,
    with_edits,
)

pytestmark = [pytest.mark.essential, pytest.mark.slow]

INPUTS = """\
import torch
torch.manual_seed(0)
x, s, b = torch.randn(64, 256, 64), torch.randn(64), torch.randn(64)
"""
# Characters beyond the first 65,536 stand before the expression, in its line and above it.
CHAIN = """\
# 🙂 𝔣𝔲𝔰𝔢 é
def act(x, s, b):
    note = "🙂🙂"; y = torch.relu(torch.tanh(x * s + b)) * 2.5
    return y
out = act(x, s, b)
"""
SETTINGS = {"target": "cpu"}
EXPRESSION = "torch.relu(torch.tanh(x * s + b)) * 2.5"


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    with running_kernel() as one:
        one.run(INPUTS, "inputs")
        one.run("%load_ext fusion_advisor\n%config FuseMagics.keep = 100", "load")
        yield one


@pytest.fixture(scope="module")
def front_end(kernel: Kernel) -> FrontEnd:
    """Its settings leave out CUDA, which takes half of the time of a validation."""
    one = FrontEnd(kernel, settings=SETTINGS)
    one.message("hello")
    return one


def profile(kernel: Kernel, front_end: FrontEnd, text: str, cell_id: str) -> dict[str, Any]:
    """Profile a cell as the front end's command does; its best finding."""
    return front_end.profiled("%%fuse_profile\n" + text, cell_id, added_lines=1)


@pytest.fixture(scope="module")
def finding(kernel: Kernel, front_end: FrontEnd) -> dict[str, Any]:
    front_end.send({"type": "settings", "values": {**SETTINGS, "target": "both"}})
    found = profile(kernel, front_end, CHAIN, "chain")
    front_end.send({"type": "settings", "values": SETTINGS})
    return found


@pytest.fixture(scope="module")
def proposal(front_end: FrontEnd, finding: dict[str, Any]) -> dict[str, Any]:
    return front_end.get("fuse", finding=finding["id"], source=CHAIN)


def state(front_end: FrontEnd, finding: dict[str, Any]) -> tuple[str, str]:
    listed = front_end.get("list")["findings"]
    return next(
        ((one["state"], one["state_reason"]) for one in listed if one["id"] == finding["id"]),
        ("gone", ""),
    )


# -- coming and going ------------------------------------------------------------------------------


def test_before_loading_the_comm_is_closed_and_loading_announces_itself():
    with running_kernel() as kernel:
        early = FrontEnd(kernel)
        kernel.until(lambda: early.closed, "the comm stays open")
        assert early.received == []
        kernel.run("%load_ext fusion_advisor")
        opened = [one for one in kernel.published if one["msg_type"] == "comm_open"]
        assert [one["content"]["target_name"] for one in opened] == ["fusion_advisor"]
        assert opened[0]["content"]["data"]["type"] == "announce"
        assert opened[0]["content"]["data"]["protocol"] == 1
        closed = [one for one in kernel.published if one["msg_type"] == "comm_close"]
        assert opened[0]["content"]["comm_id"] in {one["content"]["comm_id"] for one in closed}

        one = FrontEnd(kernel)
        hello = one.message("hello")
        assert hello["protocol"] == 1
        assert hello["config"] == {
            "target": "both", "device": "", "top": 10, "match": "eager", "marks": True
        }  # fmt: skip
        first = one.message("findings")
        assert first["profiles"] == [] and first["findings"] == []

        kernel.run("%unload_ext fusion_advisor")
        kernel.until(lambda: one.closed, "unloading leaves the comm open")
        late = FrontEnd(kernel)
        kernel.until(lambda: late.closed, "an unloaded extension listens")


@pytest.mark.parametrize(
    ("protocol", "package", "served"),
    [(1, "0.1.99", True), (2, "0.1.0", False), (1, "0.2.0", False), (1, "1.1.0", False)],
)
def test_versions_that_do_not_fit_are_explained(kernel, front_end, protocol, package, served):
    other = FrontEnd(kernel, protocol=protocol, package=package)
    if served:
        assert other.message("hello")["protocol"] == 1
        return
    said = other.message("mismatch")["message"]
    assert package in said and "0.1.0" in said and "pip install" in said
    answer = other.get("list")
    assert answer["type"] == "failed" and answer["message"] == said
    assert not [one for one in other.received if one["type"] in ("hello", "findings")]


def test_nonsense_is_answered_and_breaks_nothing(kernel, front_end, finding):
    front_end.send({"type": "fuse", "finding": "F1"})  # nobody to answer
    front_end.send({"nothing": 1})
    front_end.send({"type": "settings", "values": "loud"})
    front_end.send({"type": "profiling", "cell_id": 3})
    front_end.send({"type": "cancel", "req": "never asked"})
    for kind, fields, said in [
        ("melt", {}, "no request 'melt'"),
        (["fuse"], {}, "type is a text, not ['fuse']"),
        ("fuse", {}, "needs a text 'finding'"),
        ("fuse", {"finding": 7, "source": ""}, "needs a text 'finding'"),
        ("fuse", {"finding": "F999", "source": ""}, "F999"),
        ("explain", {"rule": "FUS999"}, "FUS999"),
        ("report", {"advice": "last"}, "whole number"),
        ("export", {"path": "a.docx"}, ""),
    ]:
        answer = front_end.get(kind, **fields)
        assert answer["type"] == "failed", kind
        assert said in answer["message"]
        assert "\n" not in answer["message"]


def test_an_interrupt_of_a_handler_is_answered(kernel, front_end, finding):
    kernel.run(
        "def stopped(data):\n    raise KeyboardInterrupt\n"
        "_now = get_ipython().magics_manager.registry['FuseMagics'].channel._requests.now\n"
        "_explain = _now['explain']; _now['explain'] = stopped"
    )
    answer = front_end.get("explain", rule="FUS001")
    assert answer["type"] == "cancelled" and "interrupt" in answer["message"]
    kernel.run("_now['explain'] = _explain")
    assert front_end.get("explain", rule="FUS001")["type"] == "rule"


# -- findings --------------------------------------------------------------------------------------


def test_a_mark_is_where_the_editor_finds_the_expression(kernel, front_end, finding):
    mark = finding["mark"]
    assert mark["text"] == EXPRESSION
    assert utf16_slice(CHAIN, mark["start"], mark["end"]) == EXPRESSION
    assert CHAIN[mark["start"] : mark["end"]] != EXPRESSION  # plain offsets would be wrong
    assert mark["cell_id"] == "chain"
    assert mark["source_hash"] == digest(CHAIN)
    assert (finding["place"], finding["inside"], finding["state"]) == ("cell", None, "open")
    assert finding["actions"] == ["fuse", "apply_live", "explain", "ignore"]
    assert finding["rule"].startswith("FUS") and finding["rule_title"]
    low, mid, high = (finding["saved_us"][name] for name in ("low", "mid", "high"))
    assert low <= mid <= high and mid > 0  # low may be a loss: it holds the run's own spread
    assert 0 < finding["share"] <= 1


def test_the_profile_of_a_cell_says_what_the_report_says(kernel, front_end, finding):
    data = front_end.get("list")
    one = next(p for p in data["profiles"] if p["advice"] == finding["advice"])
    advices = "get_ipython().magics_manager.registry['FuseMagics'].advices"
    report = f"{advices}[{finding['advice'] - 1}].report"
    assert one["cell_id"] == "chain"
    assert one["wall_us"] == pytest.approx(kernel.value(f"{report}.wall_us"))
    before, after = kernel.value(f"({report}.bytes_before, {report}.bytes_after)")
    assert one["bytes_saved_share"] == pytest.approx(1 - after / before)
    assert (one["ratio_now"], one["ratio_plan"]) == (0.0, 1.0)
    assert one["nothing"] == ""


def test_a_function_of_another_cell_is_marked_there(kernel, front_end):
    function = "def other(x):\n    return torch.sigmoid(x * 3 + 1) - 2\n"
    kernel.run(function, "definition")
    found = profile(kernel, front_end, "w = other(x)", "call")
    assert found["mark"]["cell_id"] == "definition"
    assert found["mark"]["source_hash"] == digest(function)
    assert utf16_slice(function, found["mark"]["start"], found["mark"]["end"]) == (
        "torch.sigmoid(x * 3 + 1) - 2"
    )
    profiles = front_end.get("list")["profiles"]
    assert [p["cell_id"] for p in profiles if p["advice"] == found["advice"]] == ["call"]


@pytest.mark.parametrize(
    ("above", "added"),
    [("%%fuse_profile\n", 1), ("%%fuse_profile --top 3\n", 0), ("%%time\n%%fuse_profile\n", 0)],
)
def test_marks_with_magics_of_the_persons_own(kernel, front_end, above, added):
    body = "k = 'é🙂'\nv = torch.cos(x * s) * 2 + 1\n"
    cell_id = f"magics-{len(above)}"
    found = front_end.profiled(above + body, cell_id, added_lines=added)
    visible = body if added else above + body
    mark = found["mark"]
    assert mark["source_hash"] == digest(visible)
    assert utf16_slice(visible, mark["start"], mark["end"]) == "torch.cos(x * s) * 2 + 1"
    answer = front_end.get("fuse", finding=found["id"], source=visible)
    assert answer["type"] == "proposal", answer
    assert with_edits(visible, answer["edits"]) == answer["new_source"]
    assert answer["new_source"].startswith("" if added else above)
    assert answer["new_source"].endswith("v = fused_mul_cos_add(x, s)\n")


def test_text_that_is_no_file_is_not_offered_to_be_edited_as_one(kernel, front_end):
    found = front_end.profiled("%%fuse_profile\n%%time\nv = torch.cos(x * s) * 2 + 9", "timed")
    assert found["place"] == "none" and found["mark"] is None
    assert found["actions"] == ["explain"]


def test_word_of_a_profile_that_never_ran_moves_no_mark(kernel, front_end):
    text = "n = torch.sin(x) * 2 + 7"
    front_end.send({"type": "profiling", "cell_id": "never", "added_lines": 1})
    kernel.run("m = 1", "never")
    # Typed by the person: the line is their own.
    mark = front_end.profiled(f"%%fuse_profile\n{text}", "never")["mark"]
    visible = f"%%fuse_profile\n{text}"
    assert utf16_slice(visible, mark["start"], mark["end"]) == "torch.sin(x) * 2 + 7"
    assert mark["source_hash"] == digest(visible)


def test_profiling_a_cell_again_replaces_its_findings(kernel, front_end):
    first = profile(kernel, front_end, "r = torch.exp(x * 2 - 1) + 3", "again")
    second = profile(kernel, front_end, "r = torch.exp(x * 2 - 1) + 3", "again")
    assert first["id"] != second["id"]
    listed = front_end.get("list")
    assert [p["cell_id"] for p in listed["profiles"]].count("again") == 1
    assert first["id"] not in {one["id"] for one in listed["findings"]}
    assert state(front_end, second) == ("open", "")


def test_a_cell_that_ran_with_other_text_has_stale_findings(kernel, front_end):
    text = "q = torch.sin(x + 1) * 2 - 3"
    found = profile(kernel, front_end, text, "edited")
    kernel.run(text, "edited")  # the same text without the magic
    assert state(front_end, found)[0] == "open"
    kernel.run("q = torch.sin(x + 1) * 2 - 4", "edited")
    stale = front_end.findings(
        lambda d: any(o["id"] == found["id"] and o["state"] == "stale" for o in d["findings"])
    )
    one = next(o for o in stale["findings"] if o["id"] == found["id"])
    assert "profile it again" in one["state_reason"]
    assert one["actions"] == ["explain"]


def test_a_comment_ignores_a_finding(kernel, front_end):
    found = profile(kernel, front_end, "i = torch.sin(x) * 2 - 3  # fuse: ignore", "ignored")
    assert found["state"] == "ignored"
    assert "ignore" not in found["actions"] and "fuse" in found["actions"]


def test_hostile_text_reaches_the_notebook_as_it_is(kernel, front_end):
    strings = "</script><img src=x onerror=alert(1)> `${0}` \\x1b[31m \u202e \u2028 '\\''"
    text = f'h = "{strings}"; g = torch.tanh(x * 2 + 1) - 3 # {strings}\n'
    found = profile(kernel, front_end, text, "hostile </script> 🙂")
    mark = found["mark"]
    assert utf16_slice(text, mark["start"], mark["end"]) == "torch.tanh(x * 2 + 1) - 3"
    assert mark["cell_id"] == "hostile </script> 🙂"
    answer = front_end.get("fuse", finding=found["id"], source=text)
    assert answer["passed"], answer
    assert with_edits(text, answer["edits"]) == answer["new_source"]
    assert strings in answer["new_source"]


def test_a_thousand_findings_are_listed_in_time(kernel, front_end, finding):
    kernel.run(
        "from dataclasses import replace\n"
        "_m = get_ipython().magics_manager.registry['FuseMagics']\n"
        "_a = _m.advices[-1]; _kept = _a.report\n"
        "_a.report = replace(_kept, findings=tuple(\n"
        "    replace(_kept.findings[0], id=f'X{n}') for n in range(1000)))"
    )
    began = time.monotonic()
    listed = front_end.get("list")
    took = time.monotonic() - began
    assert sum(one["id"].startswith("X") for one in listed["findings"]) == 1000
    print(f"\n1,000 findings listed in {took:.2f} s, {len(json.dumps(listed)) / 1e6:.2f} MB")
    assert took < 3.0
    kernel.run("_a.report = _kept")


# -- fusing ----------------------------------------------------------------------------------------


def test_a_proposal_names_every_rung_and_its_edits_make_the_new_text(front_end, proposal):
    assert proposal["type"] == "proposal" and proposal["passed"]
    assert proposal["source_hash"] == digest(CHAIN)
    assert with_edits(CHAIN, proposal["edits"]) == proposal["new_source"]
    assert "@cuda.jit" in proposal["new_source"]
    assert "y = fused_mul_add_tanh_relu(x, s, b)\n" in proposal["new_source"]
    names = [rung["name"] for rung in proposal["rungs"]]
    assert "compile for sm_90" in names and "CUDA kernel, run natively" in names
    assert {rung["status"] for rung in proposal["rungs"]} <= {"passed", "not run"}
    assert "compile for sm_90: " in proposal["cuda"]["compile"]
    assert proposal["cuda"]["native_ir"].startswith("CUDA kernel, run natively: ")
    assert proposal["timing"] is None
    assert proposal["diff"].startswith("--- ")
    request = proposal["req"]
    told = front_end.about(request)
    assert told[0] == {"type": "started", "req": request, "where": "child"}
    steps = [one for one in told if one["type"] == "progress"]
    assert any("sm_90" in one["stage"] for one in steps)
    fractions = [one["fraction"] for one in steps]
    assert fractions == sorted(fractions) and fractions[0] >= 0 and fractions[-1] <= 1
    assert [one["type"] for one in told if one["type"] not in ("started", "progress")] == [
        "proposal"
    ]


def test_the_new_text_computes_the_same_and_states_follow_it(kernel, front_end, finding, proposal):
    kernel.run("before = out.clone()")
    done = front_end.get(
        "accepted", finding=finding["id"], new_source_hash=digest(proposal["new_source"])
    )
    assert done["type"] == "done"
    assert state(front_end, finding)[0] == "applied"
    kernel.run(proposal["new_source"], "chain")
    # Each op rounds as eager's does; tanh differs by at most its 4 ULP, times 2.5.
    assert kernel.value("float((out - before).abs().max())") <= 4 * 2**-24 * 2.5
    assert kernel.value("type(fused_mul_add_tanh_relu).__name__") == "FusedFunction"
    assert kernel.value("fused_mul_add_tanh_relu.stats.fused") >= 1
    assert state(front_end, finding)[0] == "applied"
    front_end.get("reverted", finding=finding["id"])
    assert state(front_end, finding) == ("open", "")
    kernel.run(CHAIN, "chain")
    assert kernel.value("bool((out == before).all())")
    assert state(front_end, finding) == ("open", "")


def test_changed_text_is_refused(front_end, finding):
    answer = front_end.get("fuse", finding=finding["id"], source=CHAIN + " ")
    assert answer["type"] == "failed"
    assert "not the one that was profiled" in answer["message"]
    assert "profile the cell again" in answer["message"]


def test_what_cannot_be_edited_is_refused_with_the_reason(kernel, front_end):
    text = "z = x\nfor _ in range(2):\n    z = torch.sin(z) * 2\n"
    found = profile(kernel, front_end, text, "loop")
    answer = front_end.get("fuse", finding=found["id"], source=text)
    assert answer["type"] == "failed"
    assert f"{found['id']} cannot be edited into the text: " in answer["message"]


def test_a_wrong_kernel_edits_nothing(kernel, front_end):
    text = "p = torch.sigmoid(x * s + b) * 0.5 + 0.25"
    found = profile(kernel, front_end, text, "planted")
    kernel.run(
        "import fusion_advisor.kernels as _k, hashlib\n"
        "_right = _k.generate_kernel\n"
        "def _wrong(*args, **kw):\n"
        "    kernel = _right(*args, **kw)\n"
        "    text = kernel.text.replace('0.25', '0.26')\n"
        "    assert text != kernel.text\n"
        "    return replace(kernel, text=text, hash=hashlib.sha256(text.encode()).hexdigest())\n"
        "from dataclasses import replace\n"
        "_k.generate_kernel = _wrong"
    )
    try:
        answer = front_end.get("fuse", finding=found["id"], source=text)
    finally:
        kernel.run("_k.generate_kernel = _right")
    assert answer["type"] == "proposal"
    assert answer["passed"] is False
    assert answer["edits"] == [] and answer["new_source"] == text and answer["diff"] == ""
    failed = [rung for rung in answer["rungs"] if rung["status"] == "failed"]
    assert len(failed) == 1 and failed[0]["detail"]
    for kind in ("apply_live", "measure", "reapply_cell"):
        refused = front_end.get(kind, finding=found["id"])
        assert refused["type"] == "failed", kind
        assert [r["name"] for r in refused["rungs"] if r["status"] == "failed"] == [
            failed[0]["name"]
        ]
    assert state(front_end, found) == ("open", "")


# -- live ------------------------------------------------------------------------------------------


def test_apply_measure_and_undo_live(kernel, front_end):
    kernel.run(
        "class Act(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.tanh(x * 0.5 + 1) * 3 - x\n"
        "act_model = Act()",
        "class",
    )
    found = front_end.profiled("%fuse_profile act_model(x)", "live")
    assert found["actions"][:2] == ["fuse", "apply_live"]
    kernel.run("code = Act.forward.__code__; torch.manual_seed(7); drawn = torch.get_rng_state()")

    measured = front_end.get("measure", finding=found["id"])
    assert measured["type"] == "done", measured
    assert measured["timing"]["eager_us"] > 0 and measured["timing"]["fused_us"] > 0
    applied = front_end.get("apply_live", finding=found["id"])
    assert applied["type"] == "done", applied
    if applied["applied"]:  # a machine so busy that the call did not get faster takes it back
        assert kernel.value("Act.forward.__code__ is not code")
        assert state(front_end, found)[0] == "applied"
        again = front_end.get("apply_live", finding=found["id"])
        assert again["applied"] and "in place already" in again["message"]
    else:
        assert "taken back" in applied["message"]
    undone = front_end.get("undo", finding=found["id"])
    assert undone["message"] == (
        "taken out: __main__.Act.forward" if applied["applied"] else "Nothing was in place."
    )
    assert kernel.value("Act.forward.__code__ is code")
    assert kernel.value("bool((torch.get_rng_state() == drawn).all())")
    assert state(front_end, found)[0] == "open"
    shown = front_end.get("show", finding=found["id"])
    assert shown["type"] == "finding" and "FusedFunction(" in shown["kernel"]
    assert any(rung["name"] == "timing" for rung in shown["rungs"])
    assert front_end.get("undo", finding=None)["message"] == "Nothing was in place."


def test_an_installed_function_is_marked_on_the_call_that_reached_it(kernel, front_end, tmp_path):
    pytest.importorskip("transformers")
    kernel.run(
        f"import os; os.chdir({str(tmp_path)!r})\n"
        "from transformers.activations import NewGELUActivation\n"
        "net = torch.nn.Sequential(NewGELUActivation())\n"
        "long = torch.randn(1024, 1024)",
        "net",
    )
    text = "# 🙂\nwith torch.no_grad():\n    y = net(long)\n"
    found = profile(kernel, front_end, text, "installed")
    assert found["place"] == "installed" and found["rule"] == "FUS004"
    assert found["inside"]["file"].endswith("transformers/activations.py")
    assert found["inside"]["function"] == "NewGELUActivation.forward"
    assert utf16_slice(text, found["mark"]["start"], found["mark"]["end"]) == "net(long)"
    assert found["actions"] == [
        "reapply_cell", "apply_live", "export_module", "explain", "ignore"
    ]  # fmt: skip
    refused = front_end.get("fuse", finding=found["id"], source=text)
    assert refused["type"] == "failed" and "installed package" in refused["message"]

    cell = front_end.get("reapply_cell", finding=found["id"])
    assert cell["type"] == "cell", cell
    name = cell["path"].rpartition("/")[2]
    assert name.startswith("fused_") and (tmp_path / name).exists()
    assert f"{name[:-3]}.apply(net)" in cell["source"]
    kernel.run("import sys; sys.path.insert(0, '')\nwith torch.no_grad():\n    plain = net(long)")
    kernel.run(cell["source"], "inserted")
    kernel.run("with torch.no_grad():\n    fused = net(long)")
    module = name[:-3]
    assert kernel.value(f"len({module}._originals)") == 1
    assert kernel.value("float((fused - plain).abs().max())") < 1e-5
    kernel.run(f"{module}.undo(net)")

    (tmp_path / name).write_text("keep = 'this'\n")
    for fields, said in [
        ({}, "is a file of yours"),
        ({"path": name}, "is a file of yours"),
        ({"path": "not a module.py"}, "imported"),
    ]:
        answer = front_end.get("reapply_cell", finding=found["id"], **fields)
        assert answer["type"] == "failed" and said in answer["message"]
    answer = front_end.get("export", path=name, finding=found["id"])
    assert answer["type"] == "failed" and "is a file of yours" in answer["message"]
    assert (tmp_path / name).read_text() == "keep = 'this'\n"
    named = front_end.get("reapply_cell", finding=found["id"], path="fused_other.py")
    assert named["path"].endswith("fused_other.py") and (tmp_path / "fused_other.py").exists()

    report = front_end.get("export", path="report.json")
    assert report["path"] == "report.json" and (tmp_path / "report.json").exists()
    exported = front_end.get("export", path="fused_all.py", finding=found["id"])
    assert exported["type"] == "done" and "def apply(" in (tmp_path / "fused_all.py").read_text()
    page = front_end.get("report")
    assert page["type"] == "report" and page["html"].lstrip().lower().startswith("<!doctype html")


def test_a_rule_is_explained(front_end):
    answer = front_end.get("explain", rule="fus001")
    assert (answer["type"], answer["rule"]) == ("rule", "FUS001")
    assert answer["title"].startswith("Chain of elementwise ops")
    assert "## What it does" in answer["markdown"]


# -- several front ends, settings, reloading -------------------------------------------------------


def test_answers_go_to_the_asker_and_changes_to_all(kernel, front_end):
    other = FrontEnd(kernel)
    other.message("findings")
    request = front_end.ask("list")
    front_end.answer(request)
    kernel.pump(0.3)
    assert other.about(request) == []
    found = profile(kernel, front_end, "t = torch.exp(x) * 2 + 1", "two")
    seen = other.findings(lambda d: any(one["id"] == found["id"] for one in d["findings"]))
    assert seen["revision"] == front_end.get("list")["revision"]
    # The same page opens another comm: the old one is closed, others are left alone.
    again = FrontEnd(kernel, client=other.client)
    again.message("hello")
    kernel.until(lambda: other.closed, "the old comm of the page stays open")
    assert not front_end.closed


def test_precedence_is_option_then_config_then_front_end_then_default(kernel):
    magics = "get_ipython().magics_manager.registry['FuseMagics']"

    def value(name: str, option: str = "None") -> Any:
        return kernel.value(f"{magics}.settings.value({name!r}, {option})")

    one = FrontEnd(kernel, settings={"target": "cpu", "top": 3, "min_saving_us": 7, "marks": False})
    config = one.message("hello")["config"]
    assert (config["target"], config["top"], config["marks"]) == ("cpu", 3, False)
    assert value("min_saving_us") == 7.0
    assert value("target", "'cuda'") == "cuda"
    kernel.run("%config FuseMagics.target = 'both'")
    assert value("target") == "both"
    assert value("target", "'cuda'") == "cuda"
    values = {"target": "gpu", "top": 0, "min_saving_us": -1, "device": "h100", "marks": None}
    one.send({"type": "settings", "values": values})
    one.get("list")
    assert (value("target"), value("top"), value("device")) == ("both", 10, "h100")
    assert value("min_saving_us") == 2.0
    one.send({"type": "settings", "values": {"min_saving_us": 1e9}})
    kernel.run("%fuse_profile torch.exp(x) * 2 + 1", "thresholds")
    data = one.get("list")
    mine = next(p for p in data["profiles"] if p["cell_id"] == "thresholds")
    assert mine["nothing"] and not any(f["advice"] == mine["advice"] for f in data["findings"])
    one.send({"type": "settings", "values": SETTINGS})
    assert one.get("list")["type"] == "findings"


def test_reloading_keeps_the_findings_and_unloading_lets_them_go(kernel, front_end):
    found = profile(kernel, front_end, "u = torch.exp(x) * 5 + 1", "kept")
    kernel.run("%reload_ext fusion_advisor")
    kernel.until(lambda: front_end.closed, "reloading leaves the old comm open")
    after = FrontEnd(kernel)
    data = after.findings(lambda d: True)
    assert found["id"] in {one["id"] for one in data["findings"]}
    source = "u = torch.exp(x) * 5 + 1"
    assert after.get("fuse", finding=found["id"], source=source)["passed"]
    kernel.run("%unload_ext fusion_advisor")
    kernel.run("%load_ext fusion_advisor")
    assert FrontEnd(kernel).message("findings")["findings"] == []
