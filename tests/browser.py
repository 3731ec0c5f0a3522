"""Opening a page in headless Chromium, without a network."""

import base64
import json
import re
import shutil
import subprocess

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here: the page was not opened in a browser"
)

COUNT_PARTS = """
    const images = [...document.images].map(image => image.naturalWidth);
    return {images, tables: document.querySelectorAll("table").length};"""


ONLY_ITSELF = """<head><meta http-equiv="Content-Security-Policy"
    content="default-src data: 'unsafe-inline'">"""


def look_at(page, directory, script):
    """What the body of a function in JavaScript returns when the page has loaded.

    Errors fail, and so does a page that asks for anything that is not in it.
    """
    probe = directory / "probe.html"
    report = f"""<script>window.addEventListener("load", () => {{
        const found = (() => {{ {script} }})();
        document.title = btoa(unescape(encodeURIComponent(JSON.stringify(found))));
    }});</script></body>"""
    probe.write_text(page.read_text().replace("</body>", report).replace("<head>", ONLY_ITSELF))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={directory / 'profile'}"]
    command += ["--enable-logging=stderr", "--dump-dom", probe.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "CONSOLE" not in done.stderr, done.stderr
    return json.loads(base64.b64decode(re.search(r"<title>(.*?)</title>", done.stdout)[1]))
