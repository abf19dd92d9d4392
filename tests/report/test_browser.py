"""Laws of the page in a real browser: it asks for nothing, runs nothing, holds the numbers, and all can use it."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from report.browsing import DESKTOP, PHONE, Watched, write_report
from report.conftest import ERROR, KILLS, MARKUP

from orchestrator.journal.log import read_journal
from orchestrator.names import State
from orchestrator.rollouts.outcomes import StoredRollout, read_rollouts, rollout_path

UNFOLD = """
document.querySelectorAll('details:not(.rollout, .logprobs)').forEach((each) => { each.open = true; });
const some = [...document.querySelectorAll('.rollout')].slice(0, 3);
some.forEach((each) => [each, ...each.querySelectorAll('details')].forEach((one) => { one.open = true; }));
"""


@pytest.fixture(scope="module")
def report(thrice_killed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the run that was killed three times, with prompts."""
    return write_report(thrice_killed, tmp_path_factory.mktemp("report") / "report.html", "--with-prompts")


@pytest.fixture(scope="module")
def watched(chromium: Any, report: Path) -> Iterator[Watched]:
    """It, opened from the disk; tests leave it as they find it."""
    watched = Watched(chromium, report.as_uri())
    yield watched
    assert watched.words == []
    watched.page.close()


@pytest.fixture(scope="module")
def rows(thrice_killed: Path) -> list[dict[str, Any]]:
    """Those of metrics.jsonl."""
    return [json.loads(line) for line in (thrice_killed / "metrics.jsonl").read_text().splitlines()]


def test_it_opens_from_the_disk_and_asks_for_nothing_else(watched: Watched, report: Path) -> None:
    assert watched.requests == [report.as_uri()]
    assert watched.words == []
    drawn = watched.page.evaluate("document.querySelectorAll('.chart svg').length")
    assert drawn == watched.page.locator(".chart").count() >= 10
    assert report.stat().st_size < 2_000_000


def test_what_the_policy_does_not_name_cannot_run(watched: Watched) -> None:
    """So that even a text that were not escaped would do nothing."""
    page = watched.page
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img id=bad src=x onerror=\"window.ran=1\">')")
    page.evaluate("fetch('https://example.com/').catch(() => { window.refused = true; })")
    assert page.evaluate("window.refused")
    refused, watched.words[:] = list(watched.words), []
    page.evaluate("document.getElementById('bad').remove()")
    assert page.evaluate("window.ran === undefined")
    assert sum("Content Security Policy" in word for word in refused) >= 2
    assert len(watched.requests) == 1


def test_markup_in_tasks_errors_and_configuration_is_text(watched: Watched) -> None:
    page = watched.page
    assert page.evaluate("document.querySelectorAll('img, video').length") == 0
    texts = page.evaluate("[...document.querySelectorAll('pre.prompt')].map((each) => each.textContent)")
    assert any(f"{MARKUP}t3" in text for text in texts)
    errors = page.evaluate("[...document.querySelectorAll('.error')].map((each) => each.textContent)")
    assert any("ValueError at hostile.py:" in error and ERROR in error for error in errors)
    assert ["wandb_name", MARKUP] in watched.table("config-table")
    assert page.evaluate("document.querySelector('#data').nextElementSibling.tagName") == "SCRIPT"


def test_charts_and_tables_hold_the_numbers_of_the_metric_rows(watched: Watched, rows: list[dict[str, Any]]) -> None:
    trained = [(row["step"], row["rollout/reward_mean"]) for row in rows if "rollout/reward_mean" in row]
    tested = [(row["step"], row["test/reward_mean"]) for row in rows if "test/reward_mean" in row]
    assert len(trained) == 3
    assert len(tested) == 3
    reward = watched.chart_data("reward")
    assert [(each["batch"], each["reward"]) for each in reward if each["series"] == "training"] == trained
    assert [(each["batch"], each["reward"]) for each in reward if each["series"] == "test"] == tested
    cells = [(int(cell[0]), float(cell[2])) for cell in watched.table("cells-reward")]
    assert cells == trained + tested
    for name, keys in {
        "kl": ["optim/kl_sample_train_v1", "optim/kl_sample_train_v2"],
        "entropy": ["optim/entropy"],
        "learning-rate": ["optim/lr"],
        "tokens": ["rollout/sampled_tokens", "test/sampled_tokens"],
    }.items():
        expected = [(row["step"], row[key]) for key in keys for row in rows if row.get(key) is not None]
        found = [(each["batch"], each["value"]) for each in watched.chart_data(name)]
        assert sorted(found) == sorted(expected), name
    outcomes = {(each["batch"], each["series"]): each["value"] for each in watched.chart_data("outcomes")}
    assert outcomes[0, "failed"] == rows[0]["rollout/failed"] == 1
    assert outcomes[2, "succeeded"] == rows[2]["rollout/succeeded"] == 4


def test_the_timeline_shows_every_kill_and_resume_and_no_time_is_lost(watched: Watched, thrice_killed: Path) -> None:
    run = read_journal(thrice_killed).run
    events = watched.chart_data("timeline", "events")
    assert [event["label"] for event in events if event["event"] == "stop"] == ["killed"] * run.kills
    assert len([event for event in events if event["event"] == "resume"]) == run.kills == len(KILLS)
    stays = watched.chart_data("timeline")
    left = [(stay["batch"], stay["row"]) for stay in stays if stay["how"] == "left" and stay["row"] != "start-up"]
    assert left == [(batch, state.value) for batch, facts in run.batches.items() for state in facts.results]
    assert [stay["row"] for stay in stays if stay["how"] == "killed"] == ["Rollout", "TrainStep", "SwapSampler"]
    for before, after in pairwise(stays):
        assert before["start"] <= before["end"] <= after["start"] + 1e-6
    marks = "document.querySelectorAll('#figure-timeline .mark-symbol.role-mark path').length"
    assert watched.page.evaluate(marks) == 2 * run.kills
    words = watched.page.get_attribute("[data-chart=timeline]", "aria-label")
    assert "Stopped 3 times: killed in Rollout of batch 0" in words


def test_the_summary_tells_the_run(watched: Watched, rows: list[dict[str, Any]]) -> None:
    facts = dict(
        watched.page.evaluate(
            "[...document.querySelectorAll('.fact')].map((each) => [each.children[0].textContent, each.innerText])"
        )
    )
    assert "3 of 3" in facts["Batches"]
    assert "3 resumes" in facts["Kills survived"]
    assert f"{rows[0]['test/reward_mean']:.3f} → {rows[-1]['test/reward_mean']:.3f}" in facts["Evaluation"]
    assert "PASS" in facts["Verify"]
    assert watched.page.inner_text("header .doing").endswith("finished")


def test_logprobs_are_shown_on_demand_as_they_were_sampled(watched: Watched, thrice_killed: Path) -> None:
    run = read_journal(thrice_killed).run
    result = run.result(2, State.ROLLOUT)
    assert result is not None
    stored = read_rollouts(rollout_path(thrice_killed, 2, "train"), sha256=result["sha256"])
    best = max((each for each in stored if each.key.group == 0), key=lambda each: each.reward or 0.0)
    page = watched.page
    rollout = page.locator(f"#rollout-{best.key}-best, #rollout-{best.key}-equal").first
    assert rollout.locator("table").count() == 0
    rollout.locator("> summary").click()
    rollout.locator(".logprobs > summary").first.click()
    cells = rollout.locator(".logprobs").first.locator("tbody tr").all_inner_texts()
    assert [cell.split()[-3] for cell in cells] == [f"{logprob:.4f}" for logprob in best.turns[0].logprobs]
    rollout.locator("> summary").click()


def test_the_best_and_the_worst_of_each_group_are_shown_and_what_did_not_succeed(
    watched: Watched, thrice_killed: Path
) -> None:
    run = read_journal(thrice_killed).run
    shown = set(watched.page.evaluate("[...document.querySelectorAll('.rollout')].map((each) => each.id)"))
    for batch in (0, 1, 2):
        result = run.result(batch, State.ROLLOUT)
        assert result is not None
        stored = read_rollouts(rollout_path(thrice_killed, batch, "train"), sha256=result["sha256"])
        for group in (0, 1):
            members = [each for each in stored if each.key.group == group and each.reward is not None]
            if len({each.reward for each in members}) > 1:
                assert f"rollout-{max(members, key=_reward).key}-best" in shown
                assert f"rollout-{min(members, key=_reward).key}-worst" in shown
    assert "rollout-000000-train-0001-001-failed" in shown


def _reward(rollout: StoredRollout) -> float:
    return rollout.reward or 0.0


def test_choosing_which_rollouts_are_listed_says_how_many(watched: Watched) -> None:
    page = watched.page
    page.select_option("#filter-why", "failed")
    assert page.locator(".rollout:not([hidden])").count() == 1
    assert page.inner_text("#filter-count") == "1 listed"
    page.select_option("#filter-why", "")
    assert page.locator(".rollout[hidden]").count() == 0


def test_every_control_and_table_is_reached_by_the_keyboard_and_opens_with_it(chromium: Any, report: Path) -> None:
    watched = Watched(chromium, report.as_uri())
    page = watched.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    wanted = page.evaluate(
        "[...document.querySelectorAll('a[href], summary, select, [tabindex=\"0\"]')]"
        ".filter((each) => each.checkVisibility() && each.getClientRects().length)"
        ".map((each, index) => { each.dataset.stop = index; return index; })"
    )
    reached = []
    for _ in wanted:
        reached.append(page.evaluate("Number(document.activeElement.dataset.stop)"))
        page.keyboard.press("Tab")
    assert reached == wanted, "in the order of the page"
    page.focus("#table-reward > summary")
    page.keyboard.press("Enter")
    assert page.locator("#table-reward").get_attribute("open") is not None
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "cells-reward"
    page.close()


@pytest.mark.parametrize(("width", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_it_is_readable_at_every_width_in_light_and_dark_by_the_rules_of_axe(
    width: int, scheme: str, chromium: Any, report: Path
) -> None:
    watched = Watched(chromium, report.as_uri(), width=width, scheme=scheme)
    page = watched.page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(15, 19, 24)"}[scheme]
    label = "document.querySelector('#figure-reward .role-axis-label text').getAttribute('fill')"
    assert page.evaluate(label) == {"light": "#57606a", "dark": "#a3afbb"}[scheme]
    page.evaluate(UNFOLD)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = Axe().run(
        page, options={"resultTypes": ["violations"], "runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"]}
    )
    assert found.violations_count == 0, found.generate_report()
    assert watched.words == []
    page.close()


def test_a_change_of_the_colour_scheme_redraws_the_charts(chromium: Any, report: Path) -> None:
    watched = Watched(chromium, report.as_uri())
    watched.page.emulate_media(color_scheme="dark")
    watched.page.locator("#figure-reward .role-axis-label text[fill='#a3afbb']").first.wait_for()
    watched.page.close()


def test_without_scripts_the_numbers_are_there(chromium: Any, report: Path) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    page.locator("#table-reward > summary").click()
    assert page.locator("#cells-reward tbody tr").count() == 6
    context.close()


def test_a_run_in_its_first_batch_has_a_page(chromium: Any, in_first_batch: Path, tmp_path: Path) -> None:
    path = write_report(in_first_batch, tmp_path / "first.html")
    watched = Watched(chromium, path.as_uri())
    assert watched.words == []
    assert "killed in Rollout of batch 0" in watched.page.inner_text("header .doing")
    assert "resumes at Rollout of batch 0" in watched.page.inner_text(".plan")
    assert watched.page.locator("#figure-reward .nothing").inner_text() == "Nothing to draw yet."
    assert watched.page.locator(".rollout").count() > 0
    watched.page.close()
