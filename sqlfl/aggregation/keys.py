"""A client's key pair for the secure sums of one run, and the secrets that it shares with peers."""

from __future__ import annotations

import threading
from typing import NoReturn

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from sqlfl.aggregation.peers import KEY_BYTES, Peers
from sqlfl.base.errors import PrivacyError
from sqlfl.privacy.samplers import Entropy, system


class Secret:
    """Base of objects with secrets, which stay in their process and exist once. A copy could use a
    round's masks again.
    """

    __slots__ = ()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"{type(self).__name__} holds secrets: it is neither copied nor written")


class KeyPair(Secret):
    """Key pair of X25519 for one client and one run. The private key is forgotten once it is
    used.
    """

    __slots__ = ("_lock", "_private", "public")

    public: bytes
    """The public key, 32 bytes, for the peers."""

    def __init__(self, entropy: Entropy = system) -> None:
        private = X25519PrivateKey.from_private_bytes(entropy(KEY_BYTES))
        self._private: X25519PrivateKey | None = private
        self._lock = threading.Lock()
        self.public = private.public_key().public_bytes_raw()

    def agree(self, peers: Peers) -> dict[int, bytes]:
        """Return place -> the secret of 32 bytes that this client shares with the peer there.

        It works once and settles the run's peers. A second call is refused, even with the same
        peers, because rounds would begin anew. Raise PrivacyError for that, and for peers without
        this client.
        """
        if self.public not in peers.keys:
            raise PrivacyError(
                "the public keys of the run's clients do not have this client's own among them"
            )
        with self._lock:
            private, self._private = self._private, None
        if private is None:
            raise PrivacyError("the run's clients and their public keys are settled already")
        return {
            place: private.exchange(X25519PublicKey.from_public_bytes(key))
            for place, key in zip(peers.places, peers.keys, strict=True)
            if key != self.public
        }
