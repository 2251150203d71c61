"""The gRPC front door: serves serving.proto on the path that HTTP requests take."""

# ruff: noqa: N802 - the protocol's names and signatures

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from twostep.core.errors import Cancelled, InvalidRequest
from twostep.proto import serving_pb2 as pb
from twostep.proto import serving_pb2_grpc
from twostep.proto.rpc import Context, traceparent_of
from twostep.router.admission.in_flight import Admission
from twostep.router.bill import Intake, server_timing
from twostep.router.config import RouterConfig
from twostep.router.front.generation import Answer, Ask, Generator, Prompt
from twostep.router.front.grpc.call import ID_KEY, TIMING_KEY, read_call_wishes, read_caller, read_ids
from twostep.router.front.grpc.wire import chat_from_pb, delta_to_pb, fields_from_pb, finished_to_pb
from twostep.router.front.model import ServedModel
from twostep.router.front.openai.accept import require_model
from twostep.router.front.openai.conversation_of import conversation_of
from twostep.router.front.request_record import RequestIds, recorded
from twostep.router.front.wishes import Wishes
from twostep.router.metrics import Metrics
from twostep.router.text.transcript import Piece

SERVICE = pb.DESCRIPTOR.services_by_name["Serving"].full_name


class ServingService(serving_pb2_grpc.ServingServicer):
    """Every method raises ServingError; the server turns it into a status."""

    def __init__(
        self,
        model: ServedModel,
        generator: Generator,
        admission: Admission,
        metrics: Metrics,
        config: RouterConfig,
        *,
        started: int,
    ) -> None:
        self._model = model
        self._generator = generator
        self._admission = admission
        self._metrics = metrics
        self._stall_s = config.client_stall_s
        self._started = started

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:
        ids = read_ids(context)
        with recorded(self._metrics, ids, "grpc Generate") as record:
            wishes = read_call_wishes(context)
            record.caller = read_caller(context)
            await context.send_initial_metadata(((ID_KEY, ids.public),))
            with self._admission.admit():
                answer = await self._generate(request, ids, wishes, context)
            record.outcome, record.usage = answer.finish, answer.usage

    async def Models(self, _: pb.ModelsRequest, __: Context) -> pb.ModelsReply:
        model = pb.Model(id=self._model.names[0], created=self._started, max_model_tokens=self._model.max_model_tokens or 0)
        return pb.ModelsReply(models=[model])

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeReply:
        with recorded(self._metrics, read_ids(context), "grpc Tokenize") as record, self._admission.admit():
            require_model(request.model or None, self._model.names)
            prompt = await self._prompt(request)
            reply = pb.TokenizeReply(token_ids=prompt.tokens, max_model_tokens=self._model.limits().max_model_tokens)
            record.outcome = "ok"
            return reply

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeReply:
        with recorded(self._metrics, read_ids(context), "grpc Detokenize") as record, self._admission.admit():
            require_model(request.model or None, self._model.names)
            reply = pb.DetokenizeReply(text=await self._model.decode(request.token_ids, field="token_ids"))
            record.outcome = "ok"
            return reply

    async def _generate(self, request: pb.GenerateRequest, ids: RequestIds, wishes: Wishes, context: Context) -> Answer:
        ask = await self._accept(request, ids, wishes, context)
        answer = await self._generator.run(ask, _Deltas(partial(self._write, context)))
        if answer.rest:
            await self._write(context, delta_to_pb(answer.rest))
        await self._write(context, finished_to_pb(answer, with_bill=ask.wants_bill))
        context.set_trailing_metadata(((TIMING_KEY, server_timing(answer.bill)),))
        return answer

    async def _accept(self, request: pb.GenerateRequest, ids: RequestIds, wishes: Wishes, context: Context) -> Ask:
        clock = asyncio.get_running_loop().time
        arrived = clock()
        fields = fields_from_pb(request)
        require_model(fields.model, self._model.names)
        tokenizing = clock()
        prompt = await self._prompt(request)
        intake = Intake(arrived, tokenize_s=clock() - tokenizing, client_id=ids.public, traceparent=traceparent_of(context))
        return await self._generator.accept(fields, prompt, ids.internal, intake=intake, wishes=wishes)

    async def _prompt(self, request: pb.GenerateRequest | pb.TokenizeRequest) -> Prompt:
        match request.WhichOneof("input"):
            case "text":
                wants_special = not request.no_special_tokens
                return Prompt(await self._model.encode_text(request.text, add_special_tokens=wants_special), "text")
            case "chat":
                return Prompt(await self._model.encode(conversation_of(chat_from_pb(request.chat))), "chat")
            case "tokens" if isinstance(request, pb.GenerateRequest):
                return Prompt(tuple(request.tokens.ids), "tokens", is_given=True)
        possible = ", ".join(field.name for field in request.DESCRIPTOR.oneofs_by_name["input"].fields)
        raise InvalidRequest(f"input: expected one of {possible}, found none", param="input")

    async def _write(self, context: Context, message: Any) -> None:
        try:
            async with asyncio.timeout(self._stall_s):
                await context.write(message)
        except TimeoutError as cause:
            raise Cancelled(f"the client took nothing for {self._stall_s:g} s") from cause


class _Deltas:
    """A PieceSink that tells all pieces that are there together in one message."""

    def __init__(self, write: Callable[[pb.GenerateReply], Awaitable[None]]) -> None:
        self._write = write
        self._pieces: list[Piece] = []

    def put(self, pieces: Sequence[Piece]) -> bool:
        self._pieces.extend(pieces)
        return not self._pieces

    async def settle(self) -> None:
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            await self._write(delta_to_pb("".join(text for _, text in pieces), pieces))
