"""How much of a list is in memory at once: a stranger chooses how large a certificate request is, and how many."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2 as httpx

from attestation_operator.cluster import KubernetesCluster, config_from
from attestation_operator.objects import (
    CSR,
    NODE,
    NODE_ATTESTATION,
    PAGE_OBJECTS,
    PAGE_REQUESTS,
    RESULT,
    RUN,
    page_objects,
)
from attestation_operator.watching import IDLE_SECONDS, settings

PAGES = 3
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
}


def test_pages_of_requests_are_small_and_read_one_after_the_other(tmp_path: Path) -> None:
    """The next one is asked for when the first one was used."""
    asked: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.params.get("limit"))
        more: dict[str, Any] = {"continue": "x"} if len(asked) < PAGES else {}
        item = {"metadata": {"name": str(len(asked)), "uid": "u", "resourceVersion": "1"}}
        return httpx.Response(200, json={"metadata": more, "items": [item]})

    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(KUBECONFIG))

    async def go() -> None:
        config = config_from(kubeconfig)
        cluster = KubernetesCluster(config, transport=httpx.MockTransport(answer))
        found = [(raw["metadata"]["name"], len(asked)) async for raw in cluster.each(CSR)]
        assert found == [("1", 1), ("2", 2), ("3", 3)]
        assert asked == [str(PAGE_REQUESTS)] * PAGES
        asked.clear()
        assert len(await cluster.list(NODE)) == PAGES
        assert asked == [str(PAGE_OBJECTS)] * PAGES
        await cluster.aclose()

    asyncio.run(go())


def test_kopf_reads_the_same_pages_and_keeps_no_object() -> None:
    """Its task of an object, which holds what was seen last, ends at once when nothing more comes."""
    assert settings((CSR, NODE_ATTESTATION)).watching.chunk_size == PAGE_REQUESTS
    assert settings((NODE, NODE_ATTESTATION)).watching.chunk_size == PAGE_OBJECTS
    assert settings((NODE, RUN)).watching.chunk_size == page_objects(RESULT) < PAGE_OBJECTS
    assert settings((CSR,)).queueing.idle_timeout == IDLE_SECONDS < 1


def test_a_page_of_the_largest_requests_is_small() -> None:
    """1.5 MB is what an API server takes; as bytes, text and objects a page is there three times."""
    assert PAGE_REQUESTS * 3 * (3 << 19) <= 32 << 20
