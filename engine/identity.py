"""What a runner of a model folder tells of itself to others: its geometry and its fingerprint."""

from twostep.core.block_hash import HASH_SCHEME, SALT_RULE
from twostep.core.cache_folder import cache_folder
from twostep.core.digest import DIGEST_VERSION
from twostep.core.errors import ConfigError
from twostep.core.fingerprint import Fingerprint, Geometry
from twostep.core.kv_layout import KVLayout
from twostep.engine.config import EngineConfig
from twostep.engine.model_folder import ModelFolder
from twostep.engine.models.causal_lm import ModelFacts
from twostep.engine.sampler import SAMPLER_VERSION
from twostep.engine.weights_digest import file_sha256, weights_digest


def geometry_of(config: EngineConfig, facts: ModelFacts, num_blocks: int) -> Geometry:
    """Return the shape of what is served. Raises ConfigError for sequences that the model does not take."""
    wanted = config.max_model_tokens or facts.max_tokens
    if wanted > facts.max_tokens:
        raise ConfigError(f"engine.max_model_tokens = {wanted}: this model takes at most {facts.max_tokens} tokens")
    return Geometry(
        block_tokens=config.block_tokens,
        max_model_tokens=min(wanted, num_blocks * config.block_tokens),
        layer_group=min(config.layer_group, facts.num_layers),
        first_head=0,
        end_head=facts.num_kv_heads,
    )


def fingerprint_of(folder: ModelFolder, facts: ModelFacts, layout: KVLayout, numerics: str) -> Fingerprint:
    """Return what two nodes must have in common; hashes the weights, which takes seconds the first time."""
    return Fingerprint(
        model=folder.name,
        weights=weights_digest(folder, cache_folder() / "weights-digests"),
        tokenizer=file_sha256(folder.tokenizer),
        layout=layout.layout_id,
        dtype=layout.dtype,
        num_layers=facts.num_layers,
        num_kv_heads=facts.num_kv_heads,
        head_dim=facts.head_dim,
        vocab_size=facts.vocab_size,
        rope=facts.rope,
        model_config=facts.config,
        sliding_window=facts.sliding_window,
        numerics=numerics,
        sampler=SAMPLER_VERSION,
        hash_scheme=HASH_SCHEME,
        salt_rule=SALT_RULE,
        digest=DIGEST_VERSION,
    )
