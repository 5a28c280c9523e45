"""The floor: a bare JSON endpoint on the same server, with bodies of the same size as an attestation's."""

from __future__ import annotations

import argparse
import os
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response

ANSWER_BYTES = int(os.environ.get("BENCH_ANSWER_BYTES", "600"))

app = FastAPI(openapi_url=None)
_ANSWER = b'{"answer":"' + b"x" * (ANSWER_BYTES - 13) + b'"}'


@app.post("/bare")
async def bare(request: Request) -> Response:
    """Parse the JSON body and answer with a JSON body."""
    members: dict[str, Any] = await request.json()
    assert members
    return Response(_ANSWER, media_type="application/json")


def main() -> None:
    """Serve with the same server and number of workers as the service."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    uvicorn.run(
        "tests.bench.bare:app",
        host="127.0.0.1",
        port=arguments.port,
        workers=arguments.workers,
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
