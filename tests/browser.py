"""A headless Chromium, driven over a pipe by the DevTools protocol, without any package."""

import base64
import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


class Tab:
    """One page, and everything that it requested, printed or raised."""

    def __init__(self, send_to: int, receive_from: int) -> None:
        self._out, self._in = send_to, receive_from
        self._rest, self._number, self._session = b"", 0, None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters):
        """Call a method of the protocol, and note the events until it answers."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _receive(self):
        while b"\0" not in self._rest:
            more = os.read(self._in, 1 << 20)
            assert more, "the browser has gone"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event) -> None:
        own = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(own["request"]["url"])
        elif event.get("method") == "Log.entryAdded" and own["entry"]["level"] != "verbose":
            self.complaints.append(own["entry"]["text"])
        elif event.get("method") == "Runtime.consoleAPICalled":
            self.complaints.append(str(own["args"]))
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(own["exceptionDetails"]))

    def open(self, page: Path, width: int = 1200, *, dark: bool = False) -> None:
        """Open a file in a window of this width."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=page.resolve().as_uri())
        limit = time.monotonic() + 30
        while self.run("document.readyState") != "complete":
            assert time.monotonic() < limit, "the page does not load"

    def run(self, code: str):
        """Run JavaScript in the page, and return its value."""
        done = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def key(self, name: str, text: str = "") -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, text=text)

    def mouse(self, kind: str, x: float, y: float, **more) -> None:
        """Send an event of the mouse."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def picture(self) -> bytes:
        """Return the whole page as PNG."""
        done = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(done["data"])


@contextmanager
def browser():
    """Yield a tab of a new browser, which can reach no host."""
    to_browser, from_us = os.pipe()
    from_browser, to_us = os.pipe()

    def pipes() -> None:  # the protocol is spoken on 3 and 4
        os.dup2(to_browser, 13)
        os.dup2(to_us, 14)
        os.dup2(13, 3)
        os.dup2(14, 4)

    with TemporaryDirectory() as home:
        flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
        process = subprocess.Popen(
            [
                *(PROGRAM, *flags, "--remote-debugging-pipe", f"--user-data-dir={home}"),
                "--host-resolver-rules=MAP * ~NOTFOUND",
            ],
            preexec_fn=pipes,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(to_us)
        try:
            yield Tab(from_us, from_browser)
        finally:
            process.terminate()
            process.wait(20)
            os.close(from_us)
            os.close(from_browser)
