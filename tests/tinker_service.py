"""What the test server does: the routes that the ``tinker`` SDK (0.38) uses, carried out by the embedded backend.

As the real service does, it gives every training client an owner of its own in the paths of its checkpoints, carries a
client's requests out in the order of their ``seq_id``, answers a ``seq_id`` that it has seen with the same future, and
refuses a checkpoint name that is taken with HTTP 409.
"""

import asyncio
import contextlib
import hashlib
import itertools
import os
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import tinker
import uvicorn
from backends.model_directories import make_llama
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from tinker import types
from tinker_attempts import Attempt, FrontDesk
from tinker_protocol import PROTOBUF, forward_backward_bytes, read_forward_backward, sample_bytes

from orchestrator.backends.local.service import LocalServiceClient
from orchestrator.config import LocalConfig

LATE_SECONDS = 0.5
POLL_SECONDS = 20.0
"""How long a question for a result is held before it is answered with "try again"."""
SECTIONS = ("weights", "sampler_weights")

Reply = dict[str, Any] | bytes
Work = Callable[[], Awaitable[Reply]]


GONE = "gone"


class PlannedError(Exception):
    """A request failed because a test planned it."""

    def __init__(self, category: str) -> None:
        """``category`` as the SDK knows it, or ``GONE``."""
        super().__init__(category)
        self.category = category


@dataclass
class TrainedModel:
    """One training client's weights on the server."""

    client: Any
    base_model: str
    next_seq_id: int = 1
    turn: asyncio.Condition = field(default_factory=asyncio.Condition)
    requests: dict[int, str] = field(default_factory=dict)
    """The future of each ``seq_id`` that was accepted."""


class TinkerService:
    """The state behind the routes."""

    def __init__(self, folder: Path, model: Path, key: str) -> None:
        self._desk = FrontDesk(key, self._applied)
        self._storage = folder / "storage"
        self._model = model
        self._local = LocalServiceClient(self._storage, options=LocalConfig(), renderer_name="role_colon")
        self._numbers = itertools.count()
        self._models: dict[str, TrainedModel] = {}
        self._samplers: dict[str, tuple[str, Any]] = {}
        self._futures: dict[str, asyncio.Task[Reply]] = {}

    def routes(self) -> list[Route]:
        api = {
            "client/config": self.empty,
            "client/dynamic_config": self.empty,
            "create_session": self.create_session,
            "session_heartbeat": self.empty,
            "telemetry": self.telemetry,
            "create_model": self.create_model,
            "load_weights": self.load_weights,
            "get_info": self.get_info,
            "forward_backward": self.forward_backward,
            "optim_step": self.optim_step,
            "save_weights": self.save_weights,
            "save_weights_for_sampler": self.save_weights_for_sampler,
            "create_sampling_session": self.create_sampling_session,
            "asample": self.asample,
            "retrieve_future": self.retrieve_future,
            "weights_info": self.weights_info,
        }
        posts = [
            Route(f"/api/v1/{path}", self._desk.endpoint(path, handle), methods=["POST"])
            for path, handle in api.items()
        ]
        control = {"checkpoints": self._checkpoints, "expire": self._expire}
        return [
            *self._desk.routes(),
            *posts,
            Route("/api/v1/checkpoints", self._desk.endpoint("list_checkpoints", self.list_checkpoints)),
            Route("/api/v1/get_server_capabilities", self._desk.endpoint("get_server_capabilities", self.capabilities)),
            Route("/api/v1/samplers/{session}", self._desk.endpoint("get_sampler", self.get_sampler)),
            Route(
                "/api/v1/training_runs/{owner}/checkpoints/{section}/{name}",
                self._desk.endpoint("delete_checkpoint", self.delete_checkpoint),
                methods=["DELETE"],
            ),
            *(Route(f"/control/{name}", handle, methods=["POST"]) for name, handle in control.items()),
        ]

    async def _applied(self, response: Response) -> None:
        promise = types.UntypedAPIFuture.model_validate_json(bytes(response.body))
        await asyncio.wait([self._futures[promise.request_id]])

    def _promise(self, work: Work) -> str:
        request_id = f"request-{next(self._numbers)}"
        self._futures[request_id] = asyncio.ensure_future(work())
        return request_id

    def _in_order(self, request: Request, attempt: Attempt, work: Work) -> Response:
        """A future of ``work``, which is done when all requests of the model before ``attempt`` are."""
        assert attempt.model is not None
        assert attempt.seq_id is not None
        model, seq_id, fault = self._models[attempt.model], attempt.seq_id, request.state.fault

        async def turn() -> Reply:
            async with model.turn:
                await model.turn.wait_for(lambda: model.next_seq_id == seq_id)
            try:
                if fault is not None and fault.action == "never":
                    await asyncio.Event().wait()
                if fault is not None and fault.action == "late":
                    await asyncio.sleep(LATE_SECONDS)
                if fault is not None and fault.action == "fail":
                    raise PlannedError(fault.category)
                reply = await work()
                attempt.applied = True
                if fault is not None and fault.action in {"fail_applied", "forget"}:
                    raise PlannedError(fault.category if fault.action == "fail_applied" else GONE)
                return reply
            finally:
                async with model.turn:
                    model.next_seq_id += 1
                    model.turn.notify_all()

        if seq_id not in model.requests:
            model.requests[seq_id] = self._promise(turn)
        return JSONResponse({"request_id": model.requests[seq_id], "model_id": attempt.model})

    async def empty(self, _request: Request, _attempt: Attempt) -> Response:
        return JSONResponse({})

    async def telemetry(self, _request: Request, _attempt: Attempt) -> Response:
        return JSONResponse({"status": "accepted"})

    async def create_session(self, request: Request, attempt: Attempt) -> Response:
        attempt.name, attempt.applied = (await request.json()).get("display_name"), True
        return JSONResponse({"session_id": f"session-{next(self._numbers)}"})

    async def create_model(self, request: Request, attempt: Attempt) -> Response:
        asked = types.CreateModelRequest.model_validate(await request.json())
        lora = asked.lora_config or types.LoraConfig(rank=32)
        attempt.model = f"{asked.session_id}:train:{asked.model_seq_id}"

        async def create() -> Reply:
            client = await self._local.create_lora_training_client_async(asked.base_model, **lora.model_dump())
            return self._hold(attempt, client, asked.base_model)

        return JSONResponse({"request_id": self._promise(create)})

    async def load_weights(self, request: Request, attempt: Attempt) -> Response:
        asked = types.LoadWeightsRequest.model_validate(await request.json())
        attempt.model, attempt.name = f"{asked.session_id}:train:{asked.model_seq_id}", asked.path
        attempt.optimizer = asked.optimizer
        base_model = await self._base_model(asked.path)

        async def load() -> Reply:
            fault = request.state.fault
            if asked.optimizer and not (fault is not None and fault.action == "fresh"):
                create = self._local.create_training_client_from_state_with_optimizer_async
            else:
                create = self._local.create_training_client_from_state_async
            return self._hold(attempt, await create(_local_path(asked.path)), base_model)

        return JSONResponse({"request_id": self._promise(load)})

    def _hold(self, attempt: Attempt, client: Any, base_model: str) -> Reply:
        assert attempt.model is not None
        self._models[attempt.model] = TrainedModel(client, base_model)
        attempt.applied = True
        return {"model_id": attempt.model}

    async def get_info(self, request: Request, _attempt: Attempt) -> Response:
        model_id = (await request.json())["model_id"]
        name = self._models[model_id].base_model
        data = {"arch": "llama", "model_name": name, "tokenizer_id": name}
        return JSONResponse({"model_data": data, "model_id": model_id, "is_lora": True, "model_name": name})

    async def forward_backward(self, request: Request, attempt: Attempt) -> Response:
        asked = read_forward_backward(await request.body())
        attempt.model, attempt.seq_id = asked.model_id, asked.seq_id
        client = self._models[asked.model_id].client

        async def work() -> Reply:
            future = await client.forward_backward_async(asked.data, asked.loss_fn, asked.loss_fn_config)
            return forward_backward_bytes(await future.result_async())

        return self._in_order(request, attempt, work)

    async def optim_step(self, request: Request, attempt: Attempt) -> Response:
        body = await request.json()
        attempt.model, attempt.seq_id = body["model_id"], body["seq_id"]
        client = self._models[body["model_id"]].client

        async def work() -> Reply:
            future = await client.optim_step_async(types.AdamParams(**body["adam_params"]))
            return {"metrics": (await future.result_async()).metrics}

        return self._in_order(request, attempt, work)

    async def save_weights(self, request: Request, attempt: Attempt) -> Response:
        return await self._save(request, attempt, "weights")

    async def save_weights_for_sampler(self, request: Request, attempt: Attempt) -> Response:
        return await self._save(request, attempt, "sampler_weights")

    async def _save(self, request: Request, attempt: Attempt, section: str) -> Response:
        body = await request.json()
        attempt.model, attempt.seq_id, attempt.name = body["model_id"], body["seq_id"], body["path"]
        path = f"tinker://{attempt.model}/{section}/{attempt.name}"
        if await self._exists(path):
            return JSONResponse({"detail": f"checkpoint {attempt.name} already exists in {section}"}, 409)
        client = self._models[body["model_id"]].client
        save = client.save_state_async if section == "weights" else client.save_weights_for_sampler_async

        async def work() -> Reply:
            metadata = body.get("user_metadata")
            name = _local_path(path).rpartition("/")[2]
            future = await save(name, ttl_seconds=body.get("ttl_seconds"), user_metadata=metadata)
            await future.result_async()
            return {"path": path}

        return self._in_order(request, attempt, work)

    async def create_sampling_session(self, request: Request, attempt: Attempt) -> Response:
        body = await request.json()
        path = body.get("model_path")
        base_model = body.get("base_model") or await self._base_model(path)
        local_path = None if path is None else _local_path(path)
        sampler = await self._local.create_sampling_client_async(local_path, None if path else base_model)
        session = f"{body['session_id']}:sample:{body['sampling_session_seq_id']}"
        self._samplers[session] = (base_model, sampler)
        attempt.name, attempt.applied = path, True
        return JSONResponse({"sampling_session_id": session})

    async def get_sampler(self, request: Request, _attempt: Attempt) -> Response:
        session = request.path_params["session"]
        return JSONResponse({"sampler_id": session, "base_model": self._samplers[session][0]})

    async def asample(self, request: Request, attempt: Attempt) -> Response:
        asked = types.SampleRequest.model_validate(await request.json())
        assert asked.sampling_session_id is not None
        _, sampler = self._samplers[asked.sampling_session_id]

        async def work() -> Reply:
            sampled = await sampler.sample_async(asked.prompt, asked.num_samples, asked.sampling_params)
            logprobs = await sampler.compute_logprobs_async(asked.prompt) if asked.prompt_logprobs else None
            attempt.applied = True
            return sample_bytes(sampled.sequences, logprobs)

        request_id = self._promise(work)
        ids = [f"{request_id}-{index}" for index in range(asked.num_samples)]
        return JSONResponse({"request_id": request_id, "sample_sequence_ids": ids})

    async def retrieve_future(self, request: Request, _attempt: Attempt) -> Response:
        request_id = (await request.json())["request_id"]
        future = self._futures[request_id]
        await asyncio.wait([future], timeout=POLL_SECONDS)
        if not future.done():
            return JSONResponse({"type": "try_again", "request_id": request_id, "queue_state": "active"})
        error = future.exception()
        if isinstance(error, PlannedError):
            if error.category == GONE:
                return JSONResponse({"detail": "the promise is gone"}, 410)
            return JSONResponse({"error": "failed as planned", "category": error.category})
        if error is not None:
            return JSONResponse({"error": str(error), "category": "user"})
        reply = future.result()
        return Response(reply, media_type=PROTOBUF) if isinstance(reply, bytes) else JSONResponse(reply)

    async def weights_info(self, request: Request, attempt: Attempt) -> Response:
        attempt.name = (await request.json())["tinker_path"]
        info = await self._local.create_rest_client().get_weights_info_by_tinker_path(_local_path(attempt.name))
        return JSONResponse(info.model_dump(mode="json"))

    async def list_checkpoints(self, request: Request, _attempt: Attempt) -> Response:
        limit, offset = (int(request.query_params[name]) for name in ("limit", "offset"))
        listed = await self._local.create_rest_client().list_user_checkpoints(limit, offset)
        found = listed.model_dump(mode="json")
        for saved in found["checkpoints"]:
            section, _, name = saved["checkpoint_id"].partition("/")
            saved["tinker_path"] = _service_path(section, name)
            saved["checkpoint_id"] = f"{section}/{name.rpartition('--')[2]}"
        return JSONResponse(found)

    async def capabilities(self, _request: Request, _attempt: Attempt) -> Response:
        model = {"model_name": str(self._model), "trainable": True, "sampleable": True}
        return JSONResponse({"supported_models": [model]})

    async def delete_checkpoint(self, request: Request, attempt: Attempt) -> Response:
        attempt.name = "tinker://{owner}/{section}/{name}".format(**request.path_params)
        await self._delete(attempt.name)
        attempt.applied = True
        return Response(status_code=204)

    async def _base_model(self, path: str) -> str:
        info = await self._local.create_rest_client().get_weights_info_by_tinker_path(_local_path(path))
        return str(info.base_model)

    async def _exists(self, path: str) -> bool:
        try:
            await self._base_model(path)
        except tinker.NotFoundError:
            return False
        return True

    async def _delete(self, path: str) -> None:
        await self._local.create_rest_client().delete_checkpoint_from_tinker_path_async(_local_path(path))

    async def _checkpoints(self, _request: Request) -> Response:
        found = {}
        for section in SECTIONS:
            for directory in sorted((self._storage / "run" / section).glob("[!.]*")):
                path = _service_path(section, directory.name)
                files = sorted(directory.glob("*.safetensors"))
                found[path] = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        return JSONResponse(found)

    async def _expire(self, request: Request) -> Response:
        await self._delete(await request.json())
        return JSONResponse(None)


def _local_path(path: str) -> str:
    """Where the embedded backend keeps the checkpoint of a ``tinker://owner/section/name`` path."""
    owner, _, rest = path.removeprefix("tinker://").partition("/")
    section, _, name = rest.partition("/")
    return f"local://run/{section}/{owner.replace(':', '.')}--{name}"


def _service_path(section: str, directory_name: str) -> str:
    """The path of what ``_local_path`` gives the place of."""
    owner, _, name = directory_name.rpartition("--")
    return f"tinker://{owner.replace('.', ':')}/{section}/{name}"


def serve(folder: Path, test: Connection, *, key: str, older: type[TinkerService]) -> None:
    """Serves on a free loopback port, which ``test`` is told once requests are taken, for as long as ``test`` lives.

    ``older`` is served below /older.
    """
    output = os.open(folder / "server.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    model = make_llama(folder / "model")
    listener = socket.create_server(("127.0.0.1", 0))
    services = {"": TinkerService(folder, model, key), "/older": older(folder / "older", model, key)}
    app = Starlette(routes=[Mount(path, routes=service.routes()) for path, service in reversed(services.items())])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    test.send(listener.getsockname()[1])
    threading.Thread(target=_end_with, args=(test,), daemon=True).start()
    server.run(sockets=[listener])


def _end_with(test: Connection) -> None:
    with contextlib.suppress(EOFError):
        test.recv()
    os._exit(0)
