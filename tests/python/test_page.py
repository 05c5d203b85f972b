"""The report's page in a real browser: it is drawn, needs no network, and its filter hides what does not match."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import loafc
import pytest
import torch


def _browser() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        # CI installs one; without it there is nothing to look at the page with.
        assert not os.environ.get("CI"), "CI must have chromium"
        pytest.skip("no chromium: apt-get install chromium")
    return found


def _rendered(page: Path, profile: Path) -> str:
    """The document after its scripts have run. Any host but none is unreachable for it."""
    result = subprocess.run(
        [
            _browser(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={profile}",
            "--virtual-time-budget=2000",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return result.stdout


@pytest.fixture(scope="module")
def report() -> loafc.Report:
    torch._dynamo.reset()
    return loafc.explain(lambda x: (x.softmax(-1), x.t().contiguous()), torch.randn(64, 48))


def test_page_refers_to_nothing_outside_itself(report):
    page = report.to_html()
    assert not re.search(r"(src|href)=[\"'](?!#)", page)
    assert "@import" not in page and "url(" not in page


def test_browser_draws_nests_kernels_and_decisions(report, tmp_path):
    page = tmp_path / "report.html"
    page.write_text(report.to_html())
    dom = _rendered(page, tmp_path / "profile")
    drawing = dom[dom.index("<svg") : dom.index("</svg>")]
    assert "after the regular rounds" in drawing and "after the final round" in drawing
    assert drawing.count("<rect") >= 2 * report.kernels
    assert dom.count('class="kernel"') == report.kernels
    assert dom.count("<tr", dom.index('id="decisions"')) == 1 + len(report.decisions)
    assert str(Path(__file__).name) in dom, "the user's source line is missing"


def test_filter_hides_decisions_that_do_not_match(report, tmp_path):
    page = tmp_path / "report.html"
    typed = (
        "<script>const f = document.getElementById('filter'); f.value = 'fused, saves';"
        "f.dispatchEvent(new Event('input'));</script></body>"
    )
    page.write_text(report.to_html().replace("</body>", typed))
    dom = _rendered(page, tmp_path / "profile")
    rows = re.findall(r"<tr([^>]*)>", dom[dom.index("<tbody", dom.index('id="decisions"')) :])
    fused = [d for d in report.decisions if d["reason"]["kind"] == "fused"]
    assert sum("hidden" not in row for row in rows) == len(fused) > 0
