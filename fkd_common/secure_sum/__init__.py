"""Secure aggregation: what both sides of a masked sum must agree on; no network, no files, no state of a run.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, the variant for
an honest-but-curious server. A sum takes four steps, each a phase of the round:

1. KEYS: every participant u makes fresh secrets and publishes two X25519 keys and a digest of its seed b_u.
2. SHARES: it learns everybody's keys (the *roster*) and sends each peer, encrypted for that peer alone, a Shamir
   share of the secret behind its mask key and a share of b_u.
3. MASKED: it sends y_u = x_u + PRG(b_u) + Σ_{v>u} PRG(s_uv) - Σ_{v<u} PRG(s_uv)  (mod 2^64), with s_uv agreed between
   the mask keys of u and v. In the sum over all participants the pairwise masks cancel.
4. UNMASK: it learns who delivered y. For each of those it reveals its share of b_v, for each other one its share of
   the secret behind v's mask key; never both for the same v, and only if at least a threshold t delivered.
   With t answers the coordinator takes the remaining masks off the sum.

Threat model. The coordinator follows the protocol and is curious; any number of participants below the threshold
may share what they know with it. Then it learns the sum over those who delivered, who they are, and nothing else of
x_u. Not covered: a coordinator that *lies*, by inventing participants or by telling different clients different
rosters or different lists of who delivered. The paper's answer, a consistency check signed with the clients' own
keys, is not implemented. A participant can spoil a sum, as it can spoil a plain one (nothing about a single x_u can
be checked); wrong shares are noticed, because revealed secrets must match what was published in step 1. A sum over
two participants tells each of them the other's part, whatever the protocol.

Sums of different rounds can be subtracted from each other: of a client that is in one and missing in the next, whatever
did not change in between shows, such as the second moments of its embeddings.

Nothing secret is used twice: every sum, that is every secure phase of every round, starts from fresh secrets, and
all derived keys are bound by HKDF to the purpose, the kind of sum and the hash of its roster of fresh keys, so to
one phase of one round of one run.
"""
