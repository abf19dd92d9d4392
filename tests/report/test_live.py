"""Laws of `report --follow`: it follows the run without moving the reader, on loopback, for who has its address."""

import itertools
import os
import signal
import threading
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from processes import fixture_d, run_child, start_command, wait_for
from report.browsing import Watched
from report.conftest import SETTINGS

from orchestrator.errors import ConfigError
from orchestrator.report.command import page_maker
from orchestrator.report.live import LivePage, live_server

WAIT_MILLISECONDS = 120_000


def test_it_follows_the_run_and_the_reader_stays_where_they_are(chromium: Any, in_first_batch: Path) -> None:
    page = LivePage(in_first_batch, page_maker(in_first_batch, with_prompts=False, live=True))
    server, address = live_server(page, port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    watched = Watched(chromium, address)
    shown = watched.page
    first = shown.locator(".rollout").first
    first.locator("> summary").click()
    opened = first.get_attribute("id")
    shown.locator("#table-timeline > summary").click()
    shown.select_option("#filter-why", "best")
    shown.focus("#table-timeline > summary")
    shown.evaluate("document.querySelector('#figure-timeline').scrollIntoView({ behavior: 'instant' })")
    place = shown.evaluate("document.querySelector('#figure-timeline').getBoundingClientRect().top")
    assert shown.locator("#cells-reward tbody tr td.number").count() == 0
    assert run_child(fixture_d(in_first_batch.parent, *SETTINGS)) == 0
    shown.locator("header .doing", has_text="finished").wait_for(timeout=WAIT_MILLISECONDS)
    assert shown.locator("#cells-reward tbody tr").count() == 6
    shown.locator("[data-chart=reward] .mark-symbol path").nth(5).wait_for(state="attached")
    assert shown.locator("#table-timeline").get_attribute("open") is not None
    assert shown.evaluate(f"document.getElementById({opened!r})?.open ?? true")
    assert shown.evaluate("document.activeElement.parentElement.id") == "table-timeline"
    assert shown.input_value("#filter-why") == "best"
    moved = shown.evaluate("document.querySelector('#figure-timeline').getBoundingClientRect().top") - place
    assert abs(moved) < 2
    assert watched.words == []
    assert set(watched.requests) == {address}
    server.shutdown()
    server.server_close()
    shown.locator("#live-word", has_text="No longer live").wait_for()
    shown.close()


def ask(address: str, *, path: str | None = None, host: str | None = None, tag: str | None = None) -> Any:
    """The status, headers and body of one request."""
    parts = urlsplit(address)
    assert parts.hostname is not None
    connection = HTTPConnection(parts.hostname, parts.port)
    headers = {"Host": host or parts.netloc} | ({"If-None-Match": tag} if tag else {})
    connection.request("GET", path or parts.path, headers=headers)
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply.status, reply.headers, body


def test_only_who_has_the_address_sees_the_page_and_it_is_sent_once(in_first_batch: Path) -> None:
    numbers = itertools.count(1)
    page = LivePage(in_first_batch, lambda: f"page {next(numbers)}")
    server, address = live_server(page, port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    assert urlsplit(address).hostname == "127.0.0.1"
    assert len(urlsplit(address).path) > 20
    status, headers, body = ask(address)
    assert (status, body, headers["Cache-Control"]) == (200, b"page 1", "no-store")
    assert ask(address, tag=headers["ETag"])[::2] == (304, b"")
    assert ask(address, path="/")[0] == 404
    assert ask(address, path=urlsplit(address).path[:-1])[0] == 404
    assert ask(address, host="evil.example")[0] == 403
    assert ask(address, host=f"localhost:{urlsplit(address).port}")[0] == 200
    with (in_first_batch / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"v":1')
    assert ask(address, tag=headers["ETag"])[::2] == (200, b"page 2")
    with pytest.raises(ConfigError, match=f"--port {server.server_address[1]}.*another port"):
        live_server(page, port=server.server_address[1])
    server.shutdown()
    server.server_close()


def test_ctrl_c_ends_it_at_once(in_first_batch: Path, tmp_path: Path) -> None:
    process = start_command(tmp_path / "follow", "report", str(in_first_batch), "--follow")
    told = tmp_path / "follow" / "stdout.txt"
    while not (told.exists() and told.read_text().endswith("\n")):
        assert process.is_alive()
        process.join(0.05)
    assert ask(told.read_text().strip())[0] == 200
    os.kill(process.pid, signal.SIGINT)
    assert wait_for(process, timeout_seconds=5) == 130
    with pytest.raises(ConnectionRefusedError):
        ask(told.read_text().strip())
