"""Secure sums: clients add masks that cancel, so that only the sum of their vectors can be read.

The clients of a run each make a key pair (`keys`) and are given the public keys of all, once
(`peers`). Every two of them then share a secret, and with it a stream of random words for each
round: one adds it to its vector, the other subtracts it, modulo 2ʷ (`masks`). What is sent is
packed to w bits a number (`packing`), or made of reals, as integers of a common step, modulo a
power of two that leaves room for any (`fixed_point`; `summands` says of which messages). The
construction is that of Bonawitz et al. (2017), "Practical Secure Aggregation for Privacy-Preserving
Machine Learning", section 4, without the recovery of clients that drop out: a round that lacks a
client's vector is made again under another number. (Its second mask protects who is thought to have
dropped out; here no secret of a client is ever told.)

What it protects, and against whom. Who has all that is sent, and the keys of all clients but two,
learns of these two the sum of their vectors and nothing else, as long as X25519, HKDF-SHA256 and
ChaCha20 are what they are held to be. With all other clients colluding, a client's masks are known
and its vector is laid open: against that, only noise within the vector helps. Clients are not kept
from sending wrong vectors. And all rests on the public keys being those of the clients: who chooses
the keys of a client's peers reads its vectors. So the keys come on a way that is authenticated, or
owners compare `Peers.fingerprint`.
"""
