"""A decode node: an engine and a receiver. Seats requests, takes their KV in or computes it, and streams their tokens."""

import ctypes
import mmap
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

from twostep.core.clock import Clock
from twostep.core.errors import Cancelled, DeadlineExceeded, EngineFault, NodeUnavailable, ServingError
from twostep.core.ids import NodeRef, RequestId, RouterId
from twostep.core.memory import MemoryRegion
from twostep.core.request import TokenEvent
from twostep.decode_node import admission, reception
from twostep.decode_node.admission import REGISTRATION, Admission
from twostep.decode_node.config import DecodeNodeConfig
from twostep.decode_node.departure import Departure
from twostep.decode_node.handoffs import Handoffs
from twostep.decode_node.parts import MAX_ANSWERS, Parts
from twostep.decode_node.reception import Reception
from twostep.decode_node.seats import Seats
from twostep.decode_node.source_book import SourceBook
from twostep.decode_node.source_client import SourceClient
from twostep.decode_node.tokens import TokenStreams
from twostep.engine.engine import Engine, StepResult
from twostep.engine.runner import Runner
