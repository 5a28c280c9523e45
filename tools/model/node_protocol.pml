/*
 * The node protocol, against somebody who owns the network: PROTOCOL §§1-6 and 8 (docs/protocol/node.md).
 *
 * One honest machine (A), and what an attacker may own: a machine that was admitted and can be revoked (B), a second
 * endorsement key of B's chip (E), and a machine that boots something else (C), with a registration token good for
 * several machines. The attacker is the network: every request and every answer passes through its hands. It drops
 * (by doing nothing), delays, replays, reorders and composes; it signs nothing for the service and quotes with no key
 * of A's TPM. Operators act on their own; one of them is dishonest and votes for whatever the attacker wants.
 *
 * What is abstracted. Cryptography holds. A statement of the service is known or not, and `fresh` or not: it carries
 * the node_nonce of the request that A has open now. A stale nonce is like any other wrong one, because A never
 * chooses one twice, so the attacker has every statement signed for the open one. Of each kind of statement the attacker keeps one for each machine (of deliveries one for each
 * version), the older or the newer as it likes. The service's keys were given to A in its image.
 *
 * Bounds: ROUNDS requests of A, CHALLENGES, TOKENS and ACTS of operators while the attacker is there, RESTARTS that
 * lose all that A knew. Then the network lets A through (`calm`), for GOOD_ROUNDS rounds: what must happen
 * eventually must have happened by then.
 *
 * -D REVERT_A1 .. REVERT_A5 take one control away; each must give a trace (tools/model/check.py).
 */

#ifndef ROUNDS
#define ROUNDS 4
#endif
#ifndef CHALLENGES
#define CHALLENGES 3
#endif
#ifndef TOKENS
#define TOKENS 2
#endif
#ifndef ACTS
#define ACTS 2
#endif
#ifndef RESTARTS
#define RESTARTS 1
#endif
#define GOOD_ROUNDS 3

/* Machines as the service numbers them; NOBODY is "no machine_id yet". */
#define NOBODY 0
#define A 1
#define B 2
#define E 3
#define C 4

/* Status of a machine. */
#define NONE 0
#define PENDING 1
#define REGISTERED 2
#define ATTESTED 3
#define LOCKED 4
#define REVOKED 5

/* Actions of a directive. */
#define APPLY 1
#define LOCK 2
#define UNLOCK 3
#define WIPE 4
#define ACTIONS 5

/* What A waits for. */
#define IDLE 0
#define ACTIVATING 1
#define ATTESTING 2
#define FETCHING 3
#define WIPED 4

/* ---- the service */
byte status[5];
bit wipe_pending[5];
bit config_owed[5];
byte last_directive;        /* the action last ordered A to take, until an operator's act makes it void */
byte last_token;
bit unlock_owed;            /* A was unlocked and has not said that it knows */
bit weak_policy[5];         /* the cluster that decides has a policy which accepts every boot */
byte version = 1;           /* of A's configuration */
byte challenges;            /* issued so far; a challenge is a number from 1 on */
byte challenge_of[CHALLENGES + 1];
bit challenge_used[CHALLENGES + 1];
byte tokens;
byte token_of[TOKENS + GOOD_ROUNDS + 1];
byte token_version[TOKENS + GOOD_ROUNDS + 1];   /* sealed at the first fetch; 0 before */
bit honest_vote[5];
bit dishonest_vote[5];

/* ---- the machine A */
byte phase = IDLE;
byte id = NOBODY;           /* what it believes to be its machine_id */
bit mode_locked;            /* the mode on its disk */
bit really_locked;          /* its lock command ran, and no unlock since */
byte applied;               /* version of the configuration that it runs */
bit foreign_config;         /* it runs somebody else's */
byte quoted;                /* the challenge in its open request */
byte ordered_token;         /* of the directive that it obeys now */
bit applied_token[TOKENS + GOOD_ROUNDS + 1];
byte acks;                  /* its last acknowledgement, on its way: of this action, */
byte acks_token;            /* of the directive with this token */

/* ---- what the attacker has */
bit quote_of_A[CHALLENGES + 1];
bit activation_of_A;        /* a proof of A's TPM that was not delivered yet */
bit welcome_fresh[3];       /* signed for A's open request, about machine 1 or 2 */
bit directive_known[2 * ACTIONS];
bit directive_fresh[2 * ACTIONS];
byte directive_challenge[2 * ACTIONS];
byte directive_token[2 * ACTIONS];
bit delivery_known[4];      /* of A's version 1 and 2; 3: of B's configuration */
bit delivery_fresh[4];
byte delivery_token[4];

/* ---- ghosts: what was true since A's open request began */
bit ordered_since[ACTIONS];
byte version_then;

/* ---- counters of the bounds */
byte rounds, acts, restarts;
bit calm;

#define SLOT(who, action) ((who - 1) * ACTIONS + action)

inline look_around() {
    ordered_since[LOCK] = ordered_since[LOCK] || status[A] == LOCKED;
    ordered_since[UNLOCK] = ordered_since[UNLOCK] || status[A] == ATTESTED || status[A] == REGISTERED;
    ordered_since[WIPE] = ordered_since[WIPE] || (status[A] == REVOKED && wipe_pending[A]);
    ordered_since[APPLY] = ordered_since[APPLY] || status[A] == ATTESTED;
}

/* A chooses a new node_nonce: no statement is fresh any more. */
inline new_request() {
    d_step {
        i = 0;
        do
        :: i < 2 * ACTIONS -> directive_fresh[i] = 0; i++
        :: else -> break
        od;
        delivery_fresh[1] = 0; delivery_fresh[2] = 0; delivery_fresh[3] = 0;
        welcome_fresh[A] = 0; welcome_fresh[B] = 0;
        i = 0;
    }
}

inline new_exchange() {
    new_request();
    ordered_since[APPLY] = 0; ordered_since[LOCK] = 0; ordered_since[UNLOCK] = 0; ordered_since[WIPE] = 0;
    version_then = version;
    look_around()
}

inline forget() {
    id = NOBODY; mode_locked = 0; phase = IDLE; quoted = 0; ordered_token = 0;
    activation_of_A = 0; acks = 0; acks_token = 0;
    d_step {
        i = 0;
        do
        :: i <= TOKENS + GOOD_ROUNDS -> applied_token[i] = 0; i++
        :: else -> break
        od;
        i = 0
    }
}

/* ---- the service, one request at a time */

/* A new machine: what operators decided beforehand, or the waiting room. Wishes decide nothing. */
inline svc_create(who) {
    if
    :: who == A -> status[A] = REGISTERED; config_owed[A] = 1   /* on the allow-list */
#ifdef REVERT_A5
    :: who == E -> status[E] = REGISTERED                       /* another EK: another machine, the token admits it */
#elif defined(LINKS_ONLY_TO_ENDED)
    :: who == E -> status[E] = (status[B] == LOCKED || status[B] == REVOKED -> PENDING : REGISTERED)
#else
    /* Its AK belongs to B's EK for ever; a new AK does not help, the chip's serial links the two. */
    :: who == E -> status[E] = PENDING
#endif
    :: who == C -> status[C] = REGISTERED;
#ifdef REVERT_A4
        if
        :: weak_policy[C] = 1                                   /* introduced with the cluster_id of its choice */
        :: skip
        fi
#endif
    :: else -> skip
    fi
}

/* Appraise: the boot is as expected, or the policy that applies accepts every boot. */
#define AFFIRMING(who) (who != C || weak_policy[who])

inline svc_decide(who) {
    action = 0;
    if
    :: status[who] == REGISTERED && AFFIRMING(who) -> status[who] = ATTESTED; config_owed[who] = 1; action = APPLY
    :: status[who] == ATTESTED && AFFIRMING(who) && who == A && unlock_owed -> action = UNLOCK
    :: status[who] == ATTESTED && AFFIRMING(who) && !(who == A && unlock_owed) && config_owed[who] -> action = APPLY
    :: status[who] == LOCKED -> action = LOCK
    :: status[who] == REVOKED && wipe_pending[who] -> action = WIPE
    :: else -> skip
    fi;
    if
    :: action == APPLY && tokens < TOKENS + (calm -> GOOD_ROUNDS : 0) ->
        tokens++; token_of[tokens] = who; token_version[tokens] = 0
    :: action == APPLY && tokens >= TOKENS + (calm -> GOOD_ROUNDS : 0) -> action = 0   /* the bound */
    :: else -> skip
    fi;
    if
    :: action != 0 && who == A -> last_directive = action; last_token = (action == APPLY -> tokens : 0)
    :: else -> skip
    fi;
    look_around()
}

/* Seal to the TPM that the token belongs to. Only who sits on that chip reads it. */
inline svc_fetch(token) {
    owner = token_of[token];
    if
    :: status[owner] == ATTESTED ->
        /* Nothing is released to a TPM that is not admitted, nor to one that does not boot what was decided. */
        assert(!((owner == B || owner == E) && status[B] == REVOKED));
        assert(owner != C);
        if
        :: token_version[token] == 0 -> token_version[token] = (owner == A -> version : 1);
#ifdef FETCH_IS_DELIVERY
            config_owed[owner] = 0
#endif
        :: else -> skip
        fi
    :: else -> owner = NOBODY
    fi
}

/* An acknowledgement counts for the last directive only: it names its digest. */
inline svc_ack() {
    if
    :: acks == last_directive && acks_token == last_token && acks == UNLOCK -> unlock_owed = 0
    :: acks == last_directive && acks_token == last_token && acks == APPLY -> config_owed[A] = 0
    :: else -> skip
    fi;
    acks = 0; acks_token = 0
}

/* ---- what A does with an order that convinced it */

inline obey(what) {
    assert(ordered_since[what]);        /* meant for A by somebody who may say so, and current */
    if
    :: what == LOCK ->
#ifdef REVERT_A3
        if
        :: !mode_locked -> really_locked = 1
        :: else -> skip                 /* "it ran already" */
        fi;
#else
        really_locked = 1;
#endif
        mode_locked = 1; acks = LOCK; phase = IDLE
    :: what == UNLOCK -> mode_locked = 0; really_locked = 0; acks = UNLOCK; phase = IDLE
    :: what == WIPE -> phase = WIPED
    :: what == APPLY -> phase = FETCHING; new_request()
    fi
}

inline apply(whose, what, token) {
    assert(whose == A);                 /* its own configuration */
    assert(what >= version_then);       /* and not one that was replaced before it asked */
    applied_token[token] = 1; applied = what; acks = APPLY; acks_token = token; phase = IDLE
}

inline keep_directive(who, what, chal) {
    if
    :: who <= B ->
        directive_known[SLOT(who, what)] = 1;
        directive_fresh[SLOT(who, what)] = 1;
        directive_challenge[SLOT(who, what)] = chal;
        directive_token[SLOT(who, what)] = (what == APPLY -> tokens : 0)
    :: else -> skip
    fi
}

/* Whether a directive in a slot convinces A. */
#ifdef REVERT_A1
#define FOR_ME(who) (id == who)                                 /* machine_id alone */
#define WELCOMES(who) true
#else
#define FOR_ME(who) (who == A && id == A)                       /* machine_id, EK and AK of this TPM */
#define WELCOMES(who) (who == A)
#endif
#ifdef REVERT_A2
#define FRESH(isfresh, chal) (chal == quoted)                   /* the challenge alone, and who chose that? */
#define SAME_TOKEN(token) true
#define DELIVERY_FRESH(isfresh) true
#else
#define FRESH(isfresh, chal) (isfresh && chal == quoted)
#define SAME_TOKEN(token) (token == ordered_token)
#define DELIVERY_FRESH(isfresh) (isfresh)
#endif

active proctype network() {
    byte i, k, action, owner;

    /* B was admitted long ago and has its configuration, with the delivery that was signed for it. */
    status[B] = ATTESTED;
    delivery_known[3] = 1;

    do
    /* ---- A begins something, as often as it is allowed to */
    :: !calm && phase == IDLE && rounds < ROUNDS && id == NOBODY -> atomic {
        printf("A introduces itself and proves its TPM\n");
        rounds++; new_exchange(); phase = ACTIVATING; activation_of_A = 1 }
    :: !calm && phase == IDLE && rounds < ROUNDS && id != NOBODY -> atomic {
        rounds++; new_exchange();
        select(k : 1 .. CHALLENGES);
        if
        :: k <= challenges -> printf("A quotes over challenge %d, issued for machine %d\n", k, challenge_of[k]);
            quoted = k; quote_of_A[k] = 1; phase = ATTESTING
        :: else -> quoted = 0; phase = IDLE
        fi;
        k = 0 }
    /* A gives up: no answer convinced it. */
    :: !calm && (phase == ACTIVATING || phase == ATTESTING || phase == FETCHING) -> atomic {
        printf("A gets no answer\n"); phase = IDLE; activation_of_A = 0; quoted = 0 }
    :: !calm && phase != WIPED && restarts < RESTARTS -> atomic {
        printf("A restarts and has lost its state\n"); restarts++; forget() }

    /* ---- the attacker talks to the service */
    :: !calm && challenges < CHALLENGES -> atomic {
        challenges++;
        if
        :: challenge_of[challenges] = A
        :: challenge_of[challenges] = B
        fi;
        printf("the attacker fetches challenge %d for machine %d\n", challenges, challenge_of[challenges]) }
    :: !calm && activation_of_A -> atomic {
        activation_of_A = 0;
        if
        :: status[A] == NONE -> svc_create(A)
        :: else -> skip
        fi;
        welcome_fresh[A] = 1;
        printf("the attacker delivers A's activation: the service welcomes machine 1\n") }
    :: !calm && phase == ACTIVATING && !welcome_fresh[B] -> atomic {
        printf("the attacker activates B with A's nonce: the service welcomes machine 2\n"); welcome_fresh[B] = 1 }
    :: !calm && challenges > 0 -> atomic {
        select(k : 1 .. CHALLENGES);
        if
        :: k <= challenges && !challenge_used[k] && (challenge_of[k] == B || quote_of_A[k]) ->
            challenge_used[k] = 1;
            svc_decide(challenge_of[k]);
            if
            :: action != 0 ->
                printf("the attacker attests as machine %d over challenge %d: the service orders %d (token %d)\n",
                    challenge_of[k], k, action, tokens);
                if
                :: keep_directive(challenge_of[k], action, k)
                :: skip             /* or keeps an older one */
                fi
            :: else -> skip
            fi;
            action = 0
        :: else -> skip
        fi;
        k = 0 }
    :: !calm && tokens > 0 -> atomic {
        select(k : 1 .. TOKENS);
        if
        :: k <= tokens ->
            svc_fetch(k);
            if
            :: owner == A || owner == B ->
                i = (owner == B -> 3 : token_version[k]);
                delivery_known[i] = 1; delivery_token[i] = k; delivery_fresh[i] = 1;
                printf("the attacker fetches with token %d: version %d for machine %d\n", k, token_version[k], owner);
                i = 0
            :: else -> skip
            fi;
            owner = 0
        :: else -> skip
        fi;
        k = 0 }
    :: !calm && acks != 0 -> atomic {
        printf("A's acknowledgement of %d arrives\n", acks); svc_ack() }
    /* Its other keys and machines: nobody stands between them and the service. */
    :: !calm && status[E] == NONE -> atomic {
        printf("the attacker introduces the second EK of B's chip with a token\n"); svc_create(E) }
    :: !calm && status[C] == NONE -> atomic {
        printf("the attacker introduces C, which boots something else, with a token\n"); svc_create(C) }
    :: !calm && (status[E] == REGISTERED || status[C] == REGISTERED) && tokens < TOKENS -> atomic {
        if
        :: status[E] == REGISTERED -> k = E
        :: status[C] == REGISTERED -> k = C
        fi;
        svc_decide(k);
        if
        :: action == APPLY -> printf("the attacker attests as machine %d and fetches a configuration\n", k); svc_fetch(tokens)
        :: else -> skip
        fi;
        action = 0; owner = 0; k = 0 }

    /* ---- the attacker answers A */
    :: !calm && phase == ACTIVATING && (welcome_fresh[A] || welcome_fresh[B]) -> atomic {
        if
        :: welcome_fresh[A] -> k = A
        :: welcome_fresh[B] -> k = B
        fi;
        if
        :: WELCOMES(k) -> id = k; printf("A is welcomed as machine %d\n", id)
        :: else -> skip
        fi;
        phase = IDLE; activation_of_A = 0; k = 0 }
#ifdef REVERT_A1
    :: !calm && phase == ACTIVATING -> atomic {
        id = B; printf("the attacker answers the activation, unsigned: A believes to be machine 2\n");
        phase = IDLE; activation_of_A = 0 }
    :: !calm && phase == ATTESTING -> atomic {
        id = NOBODY; printf("the attacker answers 404: A will introduce itself again\n"); phase = IDLE; quoted = 0 }
#endif
#ifdef REVERT_A3
    :: !calm && phase == ATTESTING -> atomic {
        mode_locked = 1; printf("the attacker answers, unsigned: your status is locked\n"); phase = IDLE; quoted = 0 }
#endif
    :: !calm && phase == ATTESTING -> atomic {
        select(k : 1 .. 9);
        if
        :: k != 5 && directive_known[k] ->
            if
            :: FOR_ME((k / ACTIONS + 1)) && FRESH(directive_fresh[k], directive_challenge[k]) ->
                printf("A obeys order %d, which was signed for machine %d\n", k % ACTIONS, k / ACTIONS + 1);
                ordered_token = directive_token[k];
                quoted = 0;
                obey(k % ACTIONS)
            :: else -> skip
            fi
        :: else -> skip
        fi;
        k = 0 }
    :: !calm && phase == FETCHING -> atomic {
        select(k : 1 .. 3);
        owner = (k == 3 -> B : A);
        if
        :: delivery_known[k] && FOR_ME(owner) && DELIVERY_FRESH(delivery_fresh[k]) && SAME_TOKEN(delivery_token[k]) && !applied_token[delivery_token[k]] ->
            action = (k == 3 -> 1 : k);
            printf("A applies version %d of machine %d\n", action, owner);
            apply(owner, action, delivery_token[k])
        :: else -> skip
        fi;
        owner = 0; action = 0; k = 0 }

    /* ---- operators; the dishonest one does what any single operator may */
    :: !calm && acts < ACTS && status[A] == ATTESTED -> atomic {
        printf("an operator locks A\n"); acts++; last_directive = 0; status[A] = LOCKED; unlock_owed = 0; look_around() }
    :: !calm && acts < ACTS && status[A] == LOCKED -> atomic {
        printf("an operator unlocks A\n"); acts++; last_directive = 0; status[A] = ATTESTED; unlock_owed = 1; look_around() }
    :: !calm && acts < ACTS && version == 1 && status[A] == ATTESTED -> atomic {
        printf("an operator gives A a new configuration\n"); acts++; last_directive = 0; version = 2; config_owed[A] = 1 }
    :: !calm && acts < ACTS && status[A] != NONE && status[A] != REVOKED -> atomic {
        printf("an operator revokes A and orders the wipe\n"); acts++; last_directive = 0; status[A] = REVOKED; wipe_pending[A] = 1; look_around() }
    :: !calm && acts < ACTS && status[B] != REVOKED -> atomic {
        printf("an operator revokes B and orders the wipe\n"); acts++; status[B] = REVOKED; wipe_pending[B] = 1 }
    :: !calm && status[E] == PENDING && !dishonest_vote[E] -> atomic {
        dishonest_vote[E] = 1;
        if
        :: honest_vote[E] -> status[E] = REGISTERED
        :: else -> skip
        fi }

    :: !calm -> atomic { printf("the attacker leaves\n"); calm = 1; break }
    od;

    /* ---- the network lets A through: what must happen, happens within GOOD_ROUNDS */
    atomic {
        phase = (phase == WIPED -> WIPED : IDLE); quoted = 0; acks = 0;
        i = 0;
        do
        :: i < GOOD_ROUNDS && phase != WIPED ->
            k = i; new_exchange(); i = k; k = 0;
            if
            :: id == NOBODY ->
                if
                :: status[A] == NONE -> svc_create(A)
                :: else -> skip
                fi;
                id = A
            :: else -> skip
            fi;
            if
            :: id == A ->
                svc_decide(A);
                if
                :: action != 0 ->
                    printf("A attests: the service orders %d\n", action);
                    k = i; quoted = 0; ordered_token = (action == APPLY -> tokens : 0);
                    owner = action;
                    obey(owner);
                    i = k; k = 0;
                    if
                    :: phase == FETCHING ->
                        svc_fetch(ordered_token);
                        assert(owner == A);
                        apply(A, token_version[ordered_token], ordered_token)
                    :: else -> skip
                    fi;
                    svc_ack()
                :: else -> skip
                fi;
                action = 0; owner = 0
            :: else -> skip         /* it believes to be another machine, which has nothing for it */
            fi;
            i++
        :: else -> break
        od;
        printf("in the end: status %d, locked %d, version %d of %d\n", status[A], really_locked, applied, version);
#ifndef ORDERS_ONLY
        assert(id == A || phase == WIPED);
        assert(status[A] != ATTESTED || phase == WIPED || (!really_locked && applied == version));
        assert(status[A] != LOCKED || phase == WIPED || really_locked);
        assert(status[A] != REVOKED || !wipe_pending[A] || phase == WIPED);
#endif
        skip
    }
}
