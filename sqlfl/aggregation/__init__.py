"""Secure sums: clients add masks that cancel, so that only the sum of their vectors can be read.

Each client of a run makes a key pair (`keys`), and receives the public keys of all once (`peers`).
Every two clients then share a secret, and from it a stream of random words for each round. One adds
the stream to its vector, the other subtracts it, modulo 2ʷ (`masks`).

The vectors have one of two forms. Integers are packed to w bits a number (`packing`). Reals become
integers of a common step, modulo a power of two that leaves room for any (`fixed_point`).
`summands` says which messages are summed.

The construction is that of Bonawitz et al. (2017), "Practical Secure Aggregation for
Privacy-Preserving Machine Learning", section 4, without the recovery of clients that drop out. A
round that lacks a client's vector is repeated under another number. (The second mask of the paper
protects clients that seem to have dropped out; here no client's secret is ever disclosed.)

Protection: consider an adversary with all messages and the keys of all clients but two. It learns
the sum of these two vectors and nothing else, as long as X25519, HKDF-SHA256 and ChaCha20 are
secure.

Limits: if all other clients collude, they know a client's masks and so its vector. Only noise
within the vector helps against that. Clients can send wrong vectors.

Everything depends on the public keys being those of the clients: whoever chooses the keys of a
client's peers can read its vectors. So the keys come over an authenticated channel, or owners
compare `Peers.fingerprint`.
"""
