"""Translates between serving.proto and the router's values; ranges are checked where HTTP's are."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from twostep.core.request import FinishReason
from twostep.proto import serving_pb2 as pb
from twostep.router.bill import Bill
from twostep.router.front.generation import Answer
from twostep.router.front.openai.chat_request import ChatRequest
from twostep.router.front.openai.generation_fields import GenerationFields
from twostep.router.front.openai.parse import read_chat, read_fields
from twostep.router.text.transcript import Piece

REASONS = {FinishReason.STOP: pb.Finished.STOP, FinishReason.LENGTH: pb.Finished.LENGTH}


def fields_from_pb(wire: pb.GenerateRequest) -> GenerationFields:
    """Return how to generate. Raises InvalidRequest."""
    stop = wire.stop
    values = {
        "model": wire.model or None,
        "max_tokens": stop.max_tokens if stop.HasField("max_tokens") else None,
        "stop": list(stop.strings),
        "stop_token_ids": list(stop.token_ids),
        "ignore_eos": stop.ignore_eos,
        "cache_salt": wire.cache_salt or None,
        "bill": wire.bill,
        **{field.name: value for field, value in wire.sampling.ListFields()},
    }
    return read_fields(GenerationFields, values, {})


def chat_from_pb(wire: pb.Chat) -> ChatRequest:
    """Return the conversation. Raises InvalidRequest or Unsupported."""
    return read_chat({"messages": [_message(message) for message in wire.messages]})


def delta_to_pb(text: str, pieces: Sequence[Piece] = ()) -> pb.GenerateReply:
    return pb.GenerateReply(delta=pb.Delta(text=text, token_ids=[token for token, _ in pieces]))


def finished_to_pb(answer: Answer, *, with_bill: bool) -> pb.GenerateReply:
    usage = pb.Usage(
        prompt_tokens=answer.usage.prompt_tokens,
        completion_tokens=answer.usage.completion_tokens,
        cached_tokens=answer.usage.cached_tokens,
    )
    bill = bill_to_pb(answer.bill) if with_bill else None
    return pb.GenerateReply(finished=pb.Finished(reason=REASONS[answer.finish], usage=usage, bill=bill))


def bill_to_pb(bill: Bill) -> pb.Bill:
    return pb.Bill(**{name: value for name, value in asdict(bill).items() if value is not None})


def _message(wire: pb.ChatMessage) -> dict[str, Any]:
    named = {"name": wire.name} if wire.name else {}
    return {"role": wire.role, "content": wire.content, **named}
