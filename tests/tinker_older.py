"""The test Tinker server as self-hosted ones are: every difference that ``orchestrator.backends.compat`` bridges."""

from typing import Any

import tinker
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from tinker import types
from tinker_attempts import Attempt
from tinker_protocol import sample_bytes
from tinker_service import Reply, TinkerService, _local_path


class OlderService(TinkerService):
    """Carries out the same requests, and answers as SkyRL 0.4.0 does."""

    async def capabilities(self, _request: Request, _attempt: Attempt) -> Response:
        return JSONResponse({"supported_models": [{"model_name": str(self._model)}]})

    async def load_weights(self, request: Request, attempt: Attempt) -> Response:
        asked = types.LoadWeightsRequest.model_validate(await request.json())
        attempt.model, attempt.name, attempt.optimizer = asked.model_id, asked.path, asked.optimizer
        if asked.model_id is None:
            return JSONResponse({"detail": [{"loc": ["body", "model_id"], "msg": "Field required"}]}, 422)
        attempt.seq_id = asked.seq_id
        await self._base_model(asked.path)

        async def load() -> Reply:
            with_optimizer = self._local.create_training_client_from_state_with_optimizer_async
            create = with_optimizer if asked.optimizer else self._local.create_training_client_from_state_async
            self._models[str(asked.model_id)].client = await create(_local_path(asked.path))
            return {"type": "load_weights"}

        return self._in_order(request, attempt, load)

    async def create_sampling_session(self, request: Request, attempt: Attempt) -> Response:
        body = await request.json()
        try:
            return await super().create_sampling_session(request, attempt)
        except tinker.NotFoundError:
            session = f"{body['session_id']}:sample:{body['sampling_session_seq_id']}"
            self._samplers[session] = (str(self._model), None)
            return JSONResponse({"sampling_session_id": session})

    async def asample(self, request: Request, attempt: Attempt) -> Response:
        asked = types.SampleRequest.model_validate(await request.json())
        _, sampler = self._samplers[str(asked.sampling_session_id)]

        async def work() -> Reply:
            if sampler is None:
                raise tinker.TinkerError("the model is not loaded")
            sampled = await sampler.sample_async(asked.prompt, asked.num_samples, asked.sampling_params)
            logprobs: list[Any] | None = None
            if asked.prompt_logprobs:
                logprobs = (await sampler.compute_logprobs_async(asked.prompt))[1:]
            attempt.applied = True
            return sample_bytes(sampled.sequences, logprobs)

        return JSONResponse({"request_id": self._promise(work)})

    async def retrieve_future(self, request: Request, attempt: Attempt) -> Response:
        response = await super().retrieve_future(request, attempt)
        body = bytes(response.body)
        if b'"category"' in body:
            return JSONResponse({"detail": "the request failed"}, 400)
        if b"/sampler_weights/" in body:
            return Response(body.replace(b"/sampler_weights/", b"/"), media_type="application/json")
        return response
