"""Asks a running router a question over gRPC and prints the answer as it comes.

python docs/examples/grpc_client.py "What is the capital of France?" --address 127.0.0.1:8001
"""

import argparse

import grpc

from twostep.proto import serving_pb2 as pb
from twostep.proto.serving_pb2_grpc import ServingStub


def ask(address: str, question: str) -> None:
    """Print the answer. Raises grpc.RpcError, whose code and details say what is wrong."""
    request = pb.GenerateRequest(
        chat=pb.Chat(messages=[pb.ChatMessage(role="user", content=question)]),
        sampling=pb.Sampling(temperature=0),
        stop=pb.StopRules(max_tokens=100),
        bill=True,
    )
    with grpc.insecure_channel(address) as channel:
        # The deadline is the request's own: when it passes, the nodes stop working on it.
        for reply in ServingStub(channel).Generate(request, timeout=60):
            print(reply.delta.text, end="", flush=True)
            if reply.HasField("finished"):
                usage, bill = reply.finished.usage, reply.finished.bill
                print(f"\n{usage.completion_tokens} tokens, the first after {bill.ttft * 1000:.0f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question")
    parser.add_argument("--address", default="127.0.0.1:8001")
    arguments = parser.parse_args()
    ask(arguments.address, arguments.question)
