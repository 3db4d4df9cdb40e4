"""Prints docs/report.md as a PDF and counts its pages.

    python3 -m venv target/report && target/report/bin/pip install markdown==3.10
    target/report/bin/python tools/report/pdf.py target/report.pdf

Needs Chromium. Links to other pages of the repository become plain text. Exits with 1 if the report has more
than 12 pages.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import markdown

REPORT = Path(__file__).resolve().parents[2] / "docs/report.md"
BROWSERS = "chromium", "chromium-browser", "google-chrome"
PAGES = 12
STYLE = """
@page { size: A4; margin: 16mm 15mm; }
body { font: 9.2pt/1.32 "Liberation Serif", "Times New Roman", serif; }
h1 { font-size: 17pt; } h2 { font-size: 12.5pt; } h3 { font-size: 10.5pt; }
h1, h2, h3 { margin: 0.9em 0 0.35em; break-after: avoid; }
p, ul, ol { margin: 0.35em 0; } ul, ol { padding-left: 1.4em; }
table { border-collapse: collapse; font-size: 7.8pt; line-height: 1.2; margin: 0.5em 0; }
th, td { border: 0.4pt solid #777; padding: 1pt 3pt; vertical-align: top; } tr { break-inside: avoid; }
pre { font-size: 7.6pt; line-height: 1.2; margin: 0.4em 0 0.4em 1em; } code { font-size: 7.8pt; }
"""


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = Path(sys.argv[1]).resolve()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print("SKIPPED: Chromium is missing")
        return
    text = re.sub(r"\[([^\]]+)\]\((?!https:)[^)]+\)", r"\1", REPORT.read_text())
    body = markdown.markdown(text, extensions=["tables", "fenced_code", "sane_lists"])
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        page.write_text(f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style>{body}')
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer",
                   f"--user-data-dir={folder}/profile", f"--print-to-pdf={out}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True)
    pages = len(re.findall(rb"/Type\s*/Page\b", out.read_bytes()))
    print(f"{out}: {pages} pages")
    if not 1 <= pages <= PAGES:
        sys.exit(f"the report has to have 1 to {PAGES} pages")


if __name__ == "__main__":
    main()
