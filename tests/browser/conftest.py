"""One browser per file, one server per worker, and the extension as this checkout builds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import front_end
import pytest
from chromium import launched, screenshot
from lab_server import Server
from notebook_page import NotebookPage

FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium; closed at the end of the file, as its event loop disturbs tests of others."""
    pytest.importorskip("playwright", reason="pip install 'fusion-advisor[browser]'")
    with launched() as browser:
        yield browser


@pytest.fixture(scope="session")
def labextension() -> Path:
    """A current production build of ``extension/``."""
    try:
        front_end.build(quiet=True)
    except front_end.MissingToolError as error:
        pytest.skip(str(error))
    except front_end.FrontEndError as error:
        pytest.fail(str(error), pytrace=False)
    return front_end.built_folder()


@pytest.fixture(scope="session")
def server(labextension: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """JupyterLab of this environment."""
    pytest.importorskip("jupyterlab", reason="pip install 'fusion-advisor[browser]'")
    started = Server(tmp_path_factory.mktemp("lab"), labextension)
    yield started
    started.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Lets a fixture know, while it cleans up, that the test has failed."""
    report = yield
    if report.when == "call" and report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    """A fresh browser profile."""
    fresh = browser.new_context(viewport={"width": 1400, "height": 900})
    yield fresh
    fresh.close()


@pytest.fixture
def opened(
    context: Any, server: Server, request: pytest.FixtureRequest
) -> Iterator[Callable[..., NotebookPage]]:
    """Opens a notebook of given cells; at the end nothing of ours may be on the console."""
    pages: list[NotebookPage] = []

    def open_notebook(*cells: str, name: str = "notebook.ipynb", kernel: str = "python3") -> Any:
        if cells:
            server.write(name, *cells, kernel=kernel)
        pages.append(NotebookPage.open(context, server, name))
        return pages[-1]

    yield open_notebook
    if request.node.stash.get(FAILED, False):
        for number, page in enumerate(pages):
            screenshot(page.page, f"failed-{request.node.name}-{number}")
            print(f"console of tab {number}:", *page.watched.errors, sep="\n  ")
    errors = [error for page in pages for error in page.own_errors()]
    for page in pages:
        page.page.close()
    server.stop_kernels()
    assert errors == []
