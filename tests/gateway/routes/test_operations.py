"""/health and /metrics: what operators see."""

import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.errors import EngineDied
from gateway.metrics import Metrics
from tests.fakes import Script, ScriptedEngine
from tests.gateway.talk import CHAT, body, chat

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(client: httpx.Client) -> Series:
    response = client.get("/metrics")
    assert response.status_code == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def grown(before: Series, after: Series, name: str, **labels: str) -> float:
    key = (name, tuple(sorted(labels.items())))
    return after.get(key, 0.0) - before.get(key, 0.0)


def test_health_follows_the_engine(client: httpx.Client, engine: ScriptedEngine) -> None:
    assert (client.get("/health").status_code, client.get("/health").json()) == (200, {"status": "ok"})
    engine.is_ready = False

    loading = client.get("/health")

    assert (loading.status_code, loading.json()) == (503, {"status": "loading"})


def test_the_index_names_what_is_served(client: httpx.Client) -> None:
    assert "POST /v1/chat/completions" in client.get("/").json()["endpoints"]


def test_every_way_to_end_is_counted(client: httpx.Client, engine: ScriptedEngine) -> None:
    before = scrape(client)

    chat(client)
    chat(client, max_tokens=1, stream=True)
    chat(client, n=-1)
    engine.scripts, engine.failure = [Script([], fail_after=0)], EngineDied("x")
    chat(client)
    engine.scripts = [Script(list(range(97, 120)) * 100)]
    engine.step_seconds = 0.01
    with client.stream("POST", CHAT, json=body(stream=True)) as response:
        next(response.iter_lines())
    after = _scrape_until_idle(client)

    ended = {
        outcome: grown(before, after, "stemma_generations_ended_total", outcome=outcome)
        for outcome in ("completed", "rejected", "failed", "aborted")
    }
    assert ended == {"completed": 2, "rejected": 1, "failed": 1, "aborted": 1}
    assert grown(before, after, "stemma_generations_received_total") == 5
    assert grown(before, after, "stemma_choices_finished_total", finish_reason="stop") == 1
    assert grown(before, after, "stemma_choices_finished_total", finish_reason="length") == 1
    assert grown(before, after, "stemma_time_to_first_token_seconds_count") == 3
    assert all(
        grown(before, after, name, **dict(labels)) >= 0 for name, labels in before if name.endswith("_total")
    )


def _scrape_until_idle(client: httpx.Client) -> Series:
    deadline = time.monotonic() + 5
    while (series := scrape(client))[("stemma_generations_in_progress", ())]:
        assert time.monotonic() < deadline, "a request never ended"
        time.sleep(0.01)
    return series


def test_what_clients_write_makes_no_series(client: httpx.Client) -> None:
    chat(client, user="first")
    client.get("/x/first")
    before = set(scrape(client))

    for number in range(20):
        chat(client, model=f"m-{number}")
        chat(client, model='a"} 1\nevil{x="', user=f"u-{number}")
        client.get(f"/x/{number}")
        client.get(f"/v1/models/{number}")
    client.request("PATCH", "/v1/models")

    assert len(set(scrape(client)) - before) <= 4


def test_the_engines_figures_are_shown_while_there_is_an_engine(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    assert ("stemma_num_requests_running", ()) in scrape(client)
    engine.is_ready = False

    assert ("stemma_num_requests_running", ()) not in scrape(client)


@pytest.mark.parametrize("fields", [{"zzz": 1, "yyy": 2}])
def test_unknown_fields_are_served_and_counted(client: httpx.Client, fields: dict[str, int]) -> None:
    before = scrape(client)

    assert chat(client, **fields).status_code == 200

    assert grown(before, scrape(client), "stemma_unknown_fields_total") == 2


def test_two_servers_count_apart() -> None:
    one, other = Metrics(), Metrics()

    one.received.inc()

    assert b"stemma_generations_received_total 0.0" in other.render(None)


def test_the_figures_are_the_same_as_json(client: httpx.Client) -> None:
    chat(client)
    scraped = scrape(client)

    samples = client.get("/admin/metrics").json()["samples"]

    told = {(sample["name"], tuple(sorted(sample["labels"].items()))): sample["value"] for sample in samples}
    assert {key for key in told if not key[0].endswith("_created")} >= scraped.keys()
    for name in ("stemma_generation_tokens_total", "stemma_time_to_first_token_seconds_count"):
        assert told[name, ()] == scraped[name, ()]
