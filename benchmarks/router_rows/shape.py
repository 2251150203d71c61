"""What all mocks, ours and the peers', do alike: how long a first token and each further one take, and what is said."""

TTFT_S = 0.02
TPOT_S = 0.01
WORD = " the"
"""What a mock of a peer says at each step; ours says the tokens of it."""
MAX_TOKENS = 1 << 17
